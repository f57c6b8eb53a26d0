import type { HoldRow, PolicyRow, SettingsChangeRow } from '../../db/entities/index.ts';
import { doubtfulNames } from '../domain/doubtful-names.ts';
import { holdKind } from '../domain/hold-kinds.ts';
import { pageAddress } from '../domain/page-address.ts';
import { eventPayload } from '../escrow/view.ts';
import type { Letter } from '../lib/mail.ts';
import { html, type Markup, page } from '../lib/page.ts';
import { nameRead, oneLine } from '../lib/visible.ts';

/*
 * INVARIANT: a subject, the sentences and the links are the server's words. Of text that others choose, a subject contains only
 * the ids that authors gave to rules and policies, and nothing from agents, tools and proxies. What those wrote appears after a
 * label, on one line, of limited length, and no mail program finds a link in it.
 */

/** The recipient, the tenant, and the address of the dashboard. */
export interface Reader {
  to: string;
  tenant: string;
  tenantId: string;
  appUrl: string;
}

/** A version of a list that waits for a second person. */
export interface ListReview {
  name: string;
  version: number;
  added: number;
  removed: number;
}

/** Something that waits for a second person. */
export type Review =
  | { kind: 'policy'; policy: PolicyRow }
  | { kind: 'list'; list: ListReview }
  | { kind: 'settings'; change: SettingsChangeRow };

/** Everything that one letter is about. */
export interface Waiting {
  holds: readonly HoldRow[];
  /** Including those not listed in `holds`. */
  heldInAll: number;
  reviews: readonly Review[];
  /** Including those not listed in `reviews`. */
  reviewsInAll: number;
}

interface Part {
  /** Labels and values. */
  facts: [label: string, value: string][];
  /** What the agent claims. */
  claims?: [label: string, value: string][];
  links: [label: string, url: string][];
}

/** A letter about one held action. */
export function holdLetter(reader: Reader, hold: HoldRow): Letter {
  const [rule] = hold.details.rules;
  const said = eventPayload(hold);
  return letter(
    reader,
    rule ? `A held action waits for you: ${oneLine(rule.id, 80)}` : 'A held action waits for you',
    'An action of an agent is held. A link opens it with the vote prepared; nothing is decided before you confirm it there.',
    [
      {
        facts: [
          ...actionFacts(hold),
          ...present([
            ['Method', said.method],
            ['Resource', said.resource],
            ['Arguments', hold.details.shown.erased ? 'erased, since their retention ended' : said.arguments],
            ['Context', said.context],
          ]),
          ['Approvals', `${hold.requiredApprovals} (${holdKind(hold.holdType).label.toLowerCase()})`],
        ],
        claims: [
          ['The agent says, and nobody has checked', quoted(hold.actionSummary, 380)],
          ...(hold.riskScore === null || hold.riskScore === undefined
            ? []
            : ([['Risk, as the agent states it', String(hold.riskScore)]] as [string, string][])),
        ],
        links: voteLinks(reader, hold),
      },
    ],
  );
}

/** A letter about one review. */
export function reviewLetter(reader: Reader, review: Review): Letter {
  const part = [reviewPart(reader, review)];
  switch (review.kind) {
    case 'policy':
      return letter(
        reader,
        `A policy waits for your review: ${oneLine(review.policy.id, 80)}`,
        'A version of a policy waits for a second person.',
        part,
      );
    case 'list':
      return letter(
        reader,
        `A list waits for your review: ${oneLine(review.list.name, 80)}`,
        'A version of a list waits for a second person.',
        part,
      );
    case 'settings':
      return letter(
        reader,
        'A settings change waits for your review',
        'A change that removes a safeguard waits for a second person.',
        part,
      );
  }
}

/** One letter about everything that waits. */
export function digest(reader: Reader, { holds, heldInAll, reviews, reviewsInAll }: Waiting): Letter {
  const counts = [
    heldInAll > 0 && `${heldInAll} held ${heldInAll === 1 ? 'action' : 'actions'}`,
    reviewsInAll > 0 && `${reviewsInAll} ${reviewsInAll === 1 ? 'review' : 'reviews'}`,
  ].filter(Boolean);
  const waits = heldInAll + reviewsInAll === 1 ? 'waits' : 'wait';
  const more = heldInAll - holds.length;
  const inbox: Part = {
    facts: more > 0 ? [['Not listed here', `${more} more held ${more === 1 ? 'action' : 'actions'}`]] : [],
    links: [['All that waits for your vote', addressOf(reader, '/approvals', { mine: 'needed' })]],
  };
  const further = reviewsInAll - reviews.length;
  const queue: Part = {
    facts: [['Not listed here', `${further} more ${further === 1 ? 'review' : 'reviews'}`]],
    links: [['All that waits for a review', addressOf(reader, '/review')]],
  };
  return letter(
    reader,
    `${counts.join(' and ')} ${waits} for you`,
    'What waits for you now. The held actions that end first stand first. A link opens one with the vote prepared; nothing is decided before you confirm it there.',
    [
      ...holds.map((hold): Part => {
        const said = eventPayload(hold);
        return {
          facts: [...actionFacts(hold), ...present([['Arguments', said.arguments]])],
          links: voteLinks(reader, hold),
        };
      }),
      ...(heldInAll > 0 ? [inbox] : []),
      ...reviews.map((review) => reviewPart(reader, review)),
      ...(further > 0 ? [queue] : []),
    ],
  );
}

/** Each opens the hold in the dashboard; none of them votes by itself. */
function voteLinks(reader: Reader, { id }: HoldRow): [label: string, url: string][] {
  const to = `/approvals/${encodeURIComponent(id)}` as const;
  return [
    ['Approve', addressOf(reader, to, { vote: 'approve' })],
    ['Reject', addressOf(reader, to, { vote: 'deny' })],
    ['Read it first', addressOf(reader, to)],
  ];
}

function reviewPart(reader: Reader, review: Review): Part {
  if (review.kind === 'list') {
    const { name, version, added, removed } = review.list;
    return {
      facts: [
        ['List', name],
        ['Version', `${version}: ${added} added, ${removed} removed`],
      ],
      links: [['Review it', addressOf(reader, `/lists/${encodeURIComponent(name)}`)]],
    };
  }
  if (review.kind === 'settings') {
    const { changes, reason } = review.change;
    return {
      facts: present([['Settings', changes.map(({ setting }) => setting).join(', ')]]),
      claims: [['The person who asks for it says', quoted(reason, 380)]],
      links: [['Review it', addressOf(reader, '/settings')]],
    };
  }
  return policyPart(reader, review.policy);
}

function policyPart(reader: Reader, { id, version, status, machineContext }: PolicyRow): Part {
  const waiting = status === 'pending_approval';
  const shown = waiting ? version : (machineContext.openReviews.at(-1)?.version ?? version);
  return {
    facts: [
      ['Policy', id],
      ['Version', waiting ? `${shown}` : `${shown}, which break glass put in force`],
    ],
    links: [['Review it', addressOf(reader, `/review/${encodeURIComponent(id)}`)]],
  };
}

/** What single and combined letters show about a hold. */
function actionFacts(hold: HoldRow): [string, string][] {
  const said = eventPayload(hold);
  const names = { ...said, action_type: hold.actionType };
  const { estimatedValue: value, valueCurrency: currency, source } = hold;
  return present([
    ['Tool', read(said.tool_name)],
    ['Tool server', read(said.tool_server)],
    ['Action type', read(hold.actionType)],
    ['Method', read(said.method)],
    ['Resource', read(said.resource)],
    ...doubtfulNames(names),
    [
      source === 'evaluate' ? 'Value, as the agent states it' : 'Value, as the proxy read it',
      value === null || value === undefined ? null : `${value} ${currency ?? ''}`.trim(),
    ],
    ['Agent', nameRead(hold.agentId)],
    ['Held by', hold.details.rules.map(({ id }) => id).join(', ')],
    ['Why it is held, as the policy says', said.reason],
    ['Ends', `${hold.expiresAt.toISOString().slice(0, 16).replace('T', ' ')} UTC`],
  ]);
}

/** A name chosen by others: characters that cannot be shown as themselves appear as codes. */
const read = (name: string | null) => name && nameRead(name);

const addressOf = ({ appUrl, tenantId }: Reader, path: `/${string}`, query: Record<string, string> = {}) =>
  pageAddress(appUrl, tenantId, path, query);

function present(all: readonly (readonly [label: string, value: string | null])[]): [string, string][] {
  return all.flatMap(([label, value]) => (value ? [[label, quoted(value, 380)] as [string, string]] : []));
}

/** Text from others: on one line, visible, and without anything that a mail program would turn into a link. */
function quoted(text: string, max: number): string {
  return oneLine(text, max)
    .replace(/:(?=\/\/)/g, '[:]')
    .replace(/(?<=[\p{L}\p{N}-])\.(?=\p{L})/gu, '[.]');
}

function letter(reader: Reader, subject: string, lead: string, parts: readonly Part[]): Letter {
  const { to, tenant } = reader;
  const where = `Organization: ${oneLine(tenant, 100)}`;
  const why = 'You asked for this mail. Change what you get:';
  const account = addressOf(reader, '/account');
  const plain = parts.map(({ facts, claims = [], links }) =>
    [
      ...facts.map(([label, value]) => `${label}: ${value}`),
      ...claims.map(([label, value]) => `${label}:\n> ${value}`),
      ...links.map(([label, url]) => `${label}:\n${url}`),
    ].join('\n'),
  );
  const marked = parts.map(
    ({ facts, claims = [], links }): Markup => html`<hr>
${facts.map(([label, value]) => html`<p><strong>${label}:</strong> ${value}</p>`)}
${claims.map(([label, value]) => html`<p>${label}:</p><blockquote>${value}</blockquote>`)}
<p>${links.map(([label, url]) => html`<a href="${url}">${label}</a> &nbsp; `)}</p>`,
  );
  return {
    to,
    subject,
    text: `${[`${lead}\n${where}`, ...plain, `${why}\n${account}`].join('\n\n')}\n`,
    html: page(
      subject,
      html`<p>${lead}<br>${where}</p>${marked}<hr><p class="quiet">${why} <a href="${account}">your account</a></p>`,
    ),
  };
}
