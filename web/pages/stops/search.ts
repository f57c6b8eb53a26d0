import { STOP_KINDS, type StopKind } from '../../../server/domain/stops.ts';

/** What a link from elsewhere, such as a chat message, asks to fill in. */
export function readStopSearch({ stop, id }: Record<string, unknown>): { stop?: StopKind; id?: string } {
  if (typeof stop !== 'string' || !Object.hasOwn(STOP_KINDS, stop)) return {};
  return { stop: stop as StopKind, ...(typeof id === 'string' && id.length <= 200 && { id }) };
}
