import { setImmediate } from 'node:timers/promises';
import type { EntityManager } from '@mikro-orm/postgresql';
import {
  type CommentPlace,
  PolicyRevision,
  type PolicyRevisionRow,
  type PolicyRow,
  type ReviewRecord,
} from '../../db/entities/index.ts';
import { AppError } from '../errors.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { oneLine } from '../lib/visible.ts';
import { tokens } from './language/scan.ts';
import { lineIn, linesOf, partOf, suggestionsIn, type Texts, withSuggestion } from './review-place.ts';

/* How reviews are stored: comments with their places and threads, and the authors that a version gets through them. */

/** What a comment has besides its words. */
export interface Commented {
  thread?: string | undefined;
  place?: Place | undefined;
  suggestion?: string | undefined;
}

/** A comment to be written. */
export interface NewComment extends Omit<Commented, 'thread'> {
  version: number;
  /** Absent if the suggestion says it all. */
  comment?: string | undefined;
  /** The comment that began a thread. */
  reply_to?: string | undefined;
}

/** Lines of a version, from 1. */
interface Place {
  part: 'text' | 'tests';
  line: number;
  /** The last line, if there are several. */
  end_line?: number | undefined;
  version?: number | undefined;
}

/** How many lines one comment may be about. */
export const MOST_LINES = 100;
/** How many characters of a line are quoted with a comment, and how many lines. */
const QUOTED = 200;
const LINES_QUOTED = 10;
/** How many suggestions a new version is compared with, newest first. */
const MOST_COMPARED = 100;
/** How many of the texts they were made for are compared line by line, which is slow. */
const MOST_TEXTS = 5;

/** The comment that began a thread. */
export const threadOf = ({ reviews }: PolicyRevisionRow, id: string): ReviewRecord | undefined =>
  reviews.find((one) => one.id === id && one.thread === undefined);

/** A thread may be answered from a newer version than the one it began on. */
export async function assertThread(em: EntityManager, { tenantId, id }: PolicyRow, thread: string): Promise<void> {
  const found = await em.execute(
    `select 1 from policy_revision r, jsonb_array_elements(r.reviews) one
     where r.tenant_id = ? and r.policy_id = ? and one->>'id' = ? and one->'thread' is null`,
    [tenantId, id, thread],
  );
  if (found.length === 0) throw new AppError('NOT_FOUND', 'the policy has no such thread');
}

/** The comment with this id and its suggestion, and the version that it was made on. */
export async function suggestionOf(
  em: EntityManager,
  { tenantId, id }: PolicyRow,
  comment: string,
): Promise<{ comment: ReviewRecord; revision: PolicyRevisionRow }> {
  const [row] = await em.execute<{ version: number }[]>(
    `select r.version from policy_revision r, jsonb_array_elements(r.reviews) one
     where r.tenant_id = ? and r.policy_id = ? and one->>'id' = ? and one->'suggestion' is not null`,
    [tenantId, id, comment],
  );
  const revision = row && (await em.findOne(PolicyRevision, { policyId: id, version: row.version }));
  const found = revision && threadOf(revision, comment);
  if (!found) throw new AppError('NOT_FOUND', 'the policy has no such suggestion');
  return { comment: found, revision };
}

export const onLine = ({ place }: Pick<ReviewRecord, 'place'>): string => {
  if (!place) return '';
  const lines = place.end_line === undefined ? `line ${place.line}` : `lines ${place.line} to ${place.end_line}`;
  return ` on ${lines} of the ${place.part} of version ${place.version}`;
};

export const commentWords = (comment: ReviewRecord): string =>
  `comment ${comment.id}${comment.suggestion === undefined ? '' : ' with a suggestion'}${onLine(comment)}`;

/** The place of a comment with the lines quoted from the version itself, or from an older one. */
export async function placeIn(
  em: EntityManager,
  policyId: string,
  reviewed: number,
  { part, line, end_line: end = line, version = reviewed }: Place,
): Promise<CommentPlace> {
  const revision = version > reviewed ? null : await em.findOne(PolicyRevision, { policyId, version });
  const text = revision && (part === 'text' ? revision.dslSource : revision.testsSource);
  const found = linesOf(text ?? '').slice(line - 1, end);
  if (text == null || found.length !== end - line + 1) throw new AppError('NOT_FOUND', 'there is no such line');
  const quoted = found.slice(0, LINES_QUOTED).map((one) => oneLine(one, QUOTED));
  return { part, version, line, ...(end > line && { end_line: end }), quote: quoted.join('\n') };
}

/** The number of unresolved threads in all versions. */
export async function openThreads(em: EntityManager, { tenantId, id }: PolicyRow): Promise<number> {
  const [row] = await em.execute<{ n: number }[]>(
    `select count(*)::integer as n from policy_revision r, jsonb_array_elements(r.reviews) one
     where r.tenant_id = ? and r.policy_id = ? and one->>'status' = 'commented'
       and one->'thread' is null and one->'resolved' is null`,
    [tenantId, id],
  );
  return row!.n;
}

/** The hash of a policy's text, ignoring formatting and comments. */
export const squeezedHash = (source: string): string =>
  sha256Tag(JSON.stringify(tokens(source).map(({ text }) => text)));

/**
 * Who wrote the content of a new version, besides the person who saves it: the authors of an earlier version whose text
 * it goes back to, by a rollback or by hand, unless someone else approved that text or it is live; and anyone who
 * suggested a change that it now has in the place it was made for, however it got there.
 */
export async function writersOf(
  em: EntityManager,
  policy: PolicyRow,
  before: Texts,
  after: Texts,
  target: number | null,
): Promise<string[]> {
  const { tenantId, id } = policy;
  const same =
    target === null
      ? `squeezed_hash = ? and squeezed_hash not in (
           select squeezed_hash from policy_revision where tenant_id = ? and policy_id = ? and version = ?)`
      : `content_hash in (
           select content_hash from policy_revision where tenant_id = ? and policy_id = ? and version = ?)`;
  const earlier = await em.execute<{ authors: string[]; reviews: ReviewRecord[] }[]>(
    `select authors, reviews from policy_revision where tenant_id = ? and policy_id = ? and ${same}`,
    [
      tenantId,
      id,
      ...(target === null ? [squeezedHash(after.source)] : []),
      tenantId,
      id,
      target ?? policy.liveVersion ?? 0,
    ],
  );
  const approved = earlier.some(({ authors, reviews }) =>
    reviews.some((one) => one.status === 'approved' && !authors.includes(one.decided_by)),
  );
  const authors = approved ? [] : earlier.flatMap((one) => one.authors);
  return [...new Set([...authors, ...(await suggestersOf(em, policy, before, after))])];
}

/**
 * Those who are not authors yet and suggested something that a version has now and the previous one did not. If there are
 * more suggestions than are compared, the writers of the others count too if those were made on the live version or a
 * later one; counting older ones would make them authors for good.
 */
async function suggestersOf(em: EntityManager, policy: PolicyRow, before: Texts, after: Texts): Promise<string[]> {
  const { tenantId, id, machineContext } = policy;
  const suggested = await em.execute<{ by: string; text: string; place: CommentPlace }[]>(
    `select one->>'decided_by' as by, one->>'suggestion' as text, one->'place' as place
     from policy_revision r, jsonb_array_elements(r.reviews) one
     where r.tenant_id = ? and r.policy_id = ? and one->'suggestion' is not null
     order by one->>'id' desc`,
    [tenantId, id],
  );
  const isRecent = (version: number) => version >= (policy.liveVersion ?? 0);
  const others = suggested.filter(({ by }) => !machineContext.authors.includes(by));
  const uncompared = others.slice(MOST_COMPARED).filter(({ place }) => isRecent(place.version));
  const found = new Set(uncompared.map(({ by }) => by));
  const places = Map.groupBy(others.slice(0, MOST_COMPARED), ({ place }) => `${place.version} ${place.part}`);
  for (const [n, group] of [...places.values()].entries()) {
    const { version, part } = group[0]!.place;
    const placed = await em.findOneOrFail(PolicyRevision, { policyId: id, version });
    const [older, old, now] = [textsOf(placed), before, after].map((texts) => partOf(texts, part));
    // comparing long texts takes milliseconds, during which no one else is answered
    await setImmediate();
    const anywhere = n >= MOST_TEXTS;
    const had =
      anywhere && isRecent(version) ? () => false : suggestionsIn(older!, old!, { inDoubt: anywhere, anywhere });
    await setImmediate();
    const has = suggestionsIn(older!, now!, { inDoubt: true, anywhere });
    for (const { by, text, place } of group) {
      if (found.has(by)) continue;
      await setImmediate();
      if (has(place, text) && !had(place, text)) found.add(by);
    }
  }
  return [...found];
}

export const textsOf = ({ dslSource: source, testsSource }: PolicyRevisionRow): Texts => ({
  source,
  tests: testsSource ?? null,
});

/**
 * CONFLICT unless a version is the previous one with the suggestion applied and nothing else, at lines that are still
 * unchanged: `applies` makes the suggestion's writer an author, who then cannot approve it.
 */
export async function assertApplied(
  em: EntityManager,
  policyId: string,
  { place, suggestion, resolved }: ReviewRecord,
  before: Texts,
  after: Texts,
): Promise<void> {
  if (resolved) throw new AppError('CONFLICT', 'the thread of this suggestion is resolved: open it again to apply it');
  const { part, version, line: first, end_line: last = first } = place!;
  const placed = await em.findOneOrFail(PolicyRevision, { policyId, version });
  const line = lineIn(partOf(textsOf(placed), part), partOf(before, part), first, part, last);
  if (line === undefined) {
    throw new AppError(
      'CONFLICT',
      'the lines of this suggestion, or what is around them, have changed since it was made',
    );
  }
  const applied = withSuggestion(before, { part, line, end_line: line + last - first }, suggestion!);
  if (applied.source !== after.source || applied.tests !== after.tests) {
    throw new AppError('CONFLICT', 'the version differs from the newest one by more or less than this suggestion');
  }
  if (after.source === before.source && after.tests === before.tests) {
    throw new AppError('CONFLICT', 'this suggestion changes nothing');
  }
}
