import { cardOf } from './card.ts';
import { type Destination, NOT_FOR_CHATS } from './destination.ts';

/**
 * An incoming webhook of Slack, or of what speaks its language. What agents and people wrote goes into `plain_text` only,
 * which knows no links, mentions or formatting.
 */
export const slack: Destination = {
  description: 'a message with buttons, to an incoming webhook of Slack',
  signed: false,
  onlyNamed: NOT_FOR_CHATS,
  // Slack takes one message per second and webhook
  paceMs: 1000,
  request(message) {
    const { title, facts, said = [], buttons } = cardOf(message);
    const blocks: unknown[] = [{ type: 'header', text: plain(title) }];
    const fields = (some: typeof facts) => {
      // a section takes ten fields
      for (let at = 0; at < some.length; at += 10) {
        const ten = some.slice(at, at + 10).map(([label, value]) => plain(`${label}\n${value}`));
        blocks.push({ type: 'section', fields: ten });
      }
    };
    fields(facts);
    if (said.length > 0) blocks.push({ type: 'divider' });
    fields(said);
    if (buttons.length > 0) {
      const elements = buttons.map(({ label, url, style }, n) => ({
        type: 'button',
        action_id: `open_${n}`,
        text: plain(label),
        url,
        ...(style && { style }),
      }));
      blocks.push({ type: 'actions', elements });
    }
    // of the notification Slack reads formatting and links: it has none of what agents and people wrote
    return {
      body: JSON.stringify({ text: title, blocks }),
      headers: { 'content-type': 'application/json; charset=utf-8' },
    };
  },
  // Slack answers a word, such as invalid_blocks or no_service
  said: ({ body }) => (/^[a-z_]{1,60}$/.test(String(body)) ? String(body) : undefined),
};

const plain = (text: string) => ({ type: 'plain_text', text: escapeText(text), emoji: false });

/** `&`, `<` and `>` are the characters by which Slack tells links and mentions from text. */
function escapeText(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
