import { pageAddress } from '../../domain/page-address.ts';
import type { Hold } from '../control-plane.ts';
import type { GateParts } from './gate.ts';
import type { Request } from './wire.ts';

/** How long a client that has shown the page of a hold waits for the release, before it is asked or answered again. */
export const PAGE_WAIT_MS = 20_000;

/** What a client is asked (`elicitation/create`) so that it shows the page of a hold to a person. */
export function pageOf(
  { method, params }: Request,
  hold: Hold,
  { controlUrl, tenant }: Pick<GateParts, 'controlUrl' | 'tenant'>,
) {
  const known = tenant();
  const page = `/approvals/${hold.id}` as const;
  const what = method === 'tools/call' ? `The tool ${params?.name}` : method;
  return {
    mode: 'url',
    url: known === undefined ? controlUrl + page : pageAddress(controlUrl, known, page),
    message: `${what} ${waitsFor(hold)}. It is done when it is approved there.`,
  };
}

export function waitsFor({ id, required_approvals: needed, current_approvals: given }: Hold): string {
  return `waits for approval as ${id} (${given} of ${needed})`;
}
