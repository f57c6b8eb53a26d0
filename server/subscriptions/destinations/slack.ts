import { cardOf } from './card.ts';
import type { Destination } from './destination.ts';

/**
 * An incoming webhook of Slack, or of a service with the same format. Text written by agents and people goes into
 * `plain_text` only, which supports no links, mentions or formatting.
 */
export const slack: Destination = {
  isHost: (host) => host === 'hooks.slack.com' || host === 'hooks.slack-gov.com',
  request(message) {
    const { title, facts, claims = [], buttons } = cardOf(message);
    const blocks: unknown[] = [{ type: 'header', text: plain(title) }];
    const fields = (some: typeof facts) => {
      // a section holds at most ten fields
      for (let at = 0; at < some.length; at += 10) {
        const ten = some.slice(at, at + 10).map(([label, value]) => plain(`${label}\n${value}`));
        blocks.push({ type: 'section', fields: ten });
      }
    };
    fields(facts);
    if (claims.length > 0) blocks.push({ type: 'divider' });
    fields(claims);
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
    // Slack formats `text`, including links, so it must not contain anything written by agents or people
    return {
      body: JSON.stringify({ text: title, blocks }),
      headers: { 'content-type': 'application/json; charset=utf-8' },
    };
  },
  // Slack answers with an error code such as invalid_blocks or no_service
  errorIn: ({ body }) => (/^[a-z_]{1,60}$/.test(String(body)) ? String(body) : undefined),
};

const plain = (text: string) => ({ type: 'plain_text', text: escapeText(text), emoji: false });

/** Slack marks links and mentions with `&`, `<` and `>`. */
function escapeText(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
