import type { IncomingHttpHeaders } from 'node:http';
import { Cookie } from 'lucia';
import { equalSecret, sha256 } from '../lib/crypto.ts';

/*
 * The cookies of a session. `svc_session` has its secret. Another host of the same domain can plant a cookie of that name
 * (`Domain=…`), with a session of its own, so that a person would work in another's account. So on https a browser also has to
 * show a proof of the session, in a cookie that only this host can set: browsers take a name with `__Host-` only from the host
 * itself, over https, for all of its paths and for no other host (RFC 6265bis, section 4.1.3.2). A client that is not a browser,
 * and that keeps its own cookies, needs `svc_session` alone.
 */
const SESSION_COOKIE = 'svc_session';
const PROOF_COOKIE = '__Host-svc_proof';

/** The `Set-Cookie` lines of a session, the one with its secret first. Empty and expired to clear them. */
export function sessionCookies(secret: string, seconds: number, https: boolean): string[] {
  const line = (name: string, value: string) =>
    new Cookie(name, value, {
      httpOnly: true,
      secure: https,
      sameSite: 'lax',
      path: '/',
      maxAge: seconds,
    }).serialize();
  const session = line(SESSION_COOKIE, secret);
  return https ? [session, line(PROOF_COOKIE, secret && proofOf(secret))] : [session];
}

/** Proves that this server set the session's cookie. It is of no use without the secret, so nothing stores it. */
const proofOf = (secret: string) => sha256(`proof of ${secret}`).toString('base64url');

/**
 * The secret of the session that a request belongs to. Of several, the one that is proven; none if that leaves it open, because a
 * person must never work in a session that somebody else chose.
 */
export function sessionOf(headers: IncomingHttpHeaders, https: boolean): string | undefined {
  const [secrets, proofs] = [SESSION_COOKIE, PROOF_COOKIE].map((name) => valuesOf(headers.cookie, name)) as [
    string[],
    string[],
  ];
  if (!https) return secrets.length === 1 ? secrets[0] : undefined;
  const [proof] = proofs;
  if (proofs.length === 1) {
    return secrets.find((secret) => equalSecret(Buffer.from(proofOf(secret)), Buffer.from(proof!)));
  }
  return proofs.length === 0 && secrets.length === 1 && !fromBrowser(headers) ? secrets[0] : undefined;
}

/** Every browser says so, to servers on https (Fetch Metadata); those that are too old for that by their names. */
const fromBrowser = (headers: IncomingHttpHeaders) =>
  headers['sec-fetch-site'] !== undefined || /^Mozilla\//i.test(headers['user-agent'] ?? '');

/** The different values of the cookies with this name. */
function valuesOf(cookies: string | undefined, name: string): string[] {
  const values = (cookies ?? '').split(';').flatMap((pair) => {
    const at = pair.indexOf('=');
    return at > 0 && pair.slice(0, at).trim() === name ? [pair.slice(at + 1).trim()] : [];
  });
  return [...new Set(values)];
}
