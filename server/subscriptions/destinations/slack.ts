import { cardOf, oneLine } from './card.ts';
import type { Destination } from './destination.ts';

/**
 * An incoming webhook of Slack, or of what speaks its language. What agents and people wrote goes into `plain_text` only,
 * which knows no links, mentions or formatting.
 */
export const slack: Destination = {
  description: 'a message with buttons, to an incoming webhook of Slack',
  signed: false,
  // Slack takes one message per second and webhook
  paceMs: 1000,
  gone: [404, 410],
  request(message) {
    const { title, quote, facts, buttons } = cardOf(message);
    const blocks: unknown[] = [{ type: 'header', text: plain(title) }];
    if (quote) blocks.push({ type: 'section', text: plain(quote) });
    // a section takes ten fields
    for (let at = 0; at < facts.length; at += 10) {
      const fields = facts.slice(at, at + 10).map(([label, value]) => plain(`${label}\n${value}`));
      blocks.push({ type: 'section', fields });
    }
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
    const text = escapeText(quote ? `${title}: ${oneLine(quote, 150)}` : title);
    return { body: JSON.stringify({ text, blocks }), headers: { 'content-type': 'application/json; charset=utf-8' } };
  },
  // Slack answers a word, such as invalid_blocks or no_service
  said: ({ body }) => (/^[a-z_]{1,60}$/.test(String(body)) ? String(body) : undefined),
};

const plain = (text: string) => ({ type: 'plain_text', text: escapeText(text), emoji: false });

/** `&`, `<` and `>` are the characters by which Slack tells links and mentions from text. */
function escapeText(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
