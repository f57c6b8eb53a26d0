import { oneLine } from '../../lib/visible.ts';
import { cardOf } from './card.ts';
import type { Destination } from './destination.ts';

/**
 * A Workflows URL of Microsoft Teams, which accepts an Adaptive Card of at most 28 KB. Text written by agents and people
 * goes into TextRuns only, which do not support Markdown.
 */
export const teams: Destination = {
  isHost: (host) => /\.(logic\.azure\.com|environment\.api\.powerplatform\.com)$/.test(host),
  note: (status) =>
    status === 202 ? 'Teams queued the message (202). Check the channel to see whether it was posted.' : undefined,
  request(message) {
    const { title, facts, claims = [], buttons } = cardOf(message);
    const body: unknown[] = [{ type: 'TextBlock', text: title, size: 'large', weight: 'bolder', wrap: true }];
    for (const [label, value] of [...facts, ...claims]) {
      body.push(runs({ text: `${label}: `, weight: 'bolder' }, { text: value }));
    }
    const content = {
      $schema: 'http://adaptivecards.io/schemas/adaptive-card.json',
      type: 'AdaptiveCard',
      version: '1.4',
      fallbackText: oneLine(title, 100),
      body,
      ...(buttons.length > 0 && {
        actions: buttons.map(({ label, url, style }) => ({
          type: 'Action.OpenUrl',
          title: label,
          url,
          ...(style && { style: style === 'primary' ? 'positive' : 'destructive' }),
        })),
      }),
    };
    const attachment = { contentType: 'application/vnd.microsoft.card.adaptive', contentUrl: null, content };
    return {
      body: JSON.stringify({ type: 'message', attachments: [attachment] }),
      headers: { 'content-type': 'application/json; charset=utf-8' },
    };
  },
};

function runs(...inlines: { text: string; weight?: string }[]) {
  const spacing = 'small';
  return { type: 'RichTextBlock', spacing, inlines: inlines.map((inline) => ({ type: 'TextRun', ...inline })) };
}
