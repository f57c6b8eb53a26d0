import { type KeyObject, sign, verify } from 'node:crypto';
import { canonicalJson } from '../lib/canonical-json.ts';

/**
 * The control plane's word that a proxy has what is current: a compact JWS (RFC 7515) over canonical JSON, which comes with every
 * answer about bundles and stops. An answer alone would not do: whoever is between could give an old one for ever.
 */
export const CURRENT_HEADER = 'x-svc-current';
/** With it, a proxy that trusts only some keys says which. */
export const TRUSTED_HEADER = 'x-svc-trusted-keys';
const TYPE = 'svc-current+jws';
const FORMAT = 'svc-current/1';
const MOST_BYTES = 2048;

/** What is current. */
export interface Standing {
  what: 'bundle' | 'stops';
  tenant: string;
  seq: number;
  hash: string;
}

/** It does not say that. */
export class CurrentError extends Error {
  override readonly name = 'CurrentError';
}

/** `at`: milliseconds since the epoch. */
export function signCurrent(
  { what, tenant, seq, hash }: Standing,
  at: number,
  signer: { kid: string; privateKey: KeyObject },
): string {
  const encoded = [
    { alg: 'EdDSA', kid: signer.kid, typ: TYPE },
    { at: new Date(at).toISOString(), format: FORMAT, hash, seq, tenant, what },
  ].map((part) => Buffer.from(canonicalJson(part)).toString('base64url'));
  const signed = encoded.join('.');
  return `${signed}.${sign(null, Buffer.from(signed), signer.privateKey).toString('base64url')}`;
}

/** The key that it claims to be signed with; undefined if it is malformed. Only for looking up the key. */
export function signerOfCurrent(text: string): string | undefined {
  try {
    const { kid } = JSON.parse(Buffer.from(text.split('.')[0] ?? '', 'base64url').toString());
    return typeof kid === 'string' ? kid : undefined;
  } catch {
    return undefined;
  }
}

/** When exactly this was current, by the control plane's clock. For any other text it throws a CurrentError and nothing else. */
export function openCurrent(
  text: string | undefined,
  keyFor: (kid: string) => KeyObject | undefined,
  { what, tenant, seq, hash }: Standing,
): number {
  if (text === undefined) throw new CurrentError('the answer is not signed');
  const kid = text.length > MOST_BYTES ? undefined : signerOfCurrent(text);
  const [head = '', body = '', tail = '', ...more] = text.split('.');
  const key = kid === undefined || more.length > 0 ? undefined : keyFor(kid);
  if (kid === undefined || !key) throw new CurrentError(`the answer is signed with an unknown key (${kid})`);
  const signature = Buffer.from(tail, 'base64url');
  if (key.asymmetricKeyType !== 'ed25519' || !verify(null, Buffer.from(`${head}.${body}`), key, signature)) {
    throw new CurrentError('the signature of the answer is not valid');
  }
  const at = /^\{"at":"([^"]+)"/.exec(Buffer.from(body, 'base64url').toString())?.[1] ?? '';
  // the only text with this content
  const encode = (value: unknown) => Buffer.from(canonicalJson(value)).toString('base64url');
  const same =
    head === encode({ alg: 'EdDSA', kid, typ: TYPE }) &&
    body === encode({ at, format: FORMAT, hash, seq, tenant, what });
  const time = Date.parse(at);
  if (!same || Number.isNaN(time)) throw new CurrentError('the answer is signed for something else');
  return time;
}
