import { Failure } from '../failure.ts';

/**
 * An address that a sign-in goes to, or its token, must be https. Plain http is allowed only on this machine, and only if the
 * server is on this machine too: a server elsewhere must not make the proxy call what listens here.
 */
export function isSafe(address: URL, server: URL): boolean {
  const here = isLoopback(server);
  if (address.protocol === 'https:') return here || !isLoopback(address);
  return address.protocol === 'http:' && here && isLoopback(address);
}

/** Throws a Failure if it is not. */
export function assertSafe(address: URL, server: string): void {
  if (isSafe(address, new URL(server))) return;
  throw new Failure(
    `${address.origin} is not used for a sign-in: it is neither https nor on this machine with the server`,
  );
}

/** Whether an address is on this machine. */
export function isLoopback({ hostname }: URL): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d+){3}$/.test(hostname);
}
