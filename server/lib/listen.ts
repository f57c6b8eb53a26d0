/** Why a server cannot listen, as text for its operator; undefined for any other error. */
export function listenFault(error: unknown): string | undefined {
  const { code, syscall, address, port } = error as NodeJS.ErrnoException & { address?: string; port?: number };
  if (syscall !== 'listen') return undefined;
  const place = `${address}:${port}`;
  switch (code) {
    case 'EADDRINUSE':
      return `Another program listens on ${place}. Stop it, or set another port.`;
    case 'EACCES':
      return `This user may not listen on ${place}. Set a port of 1024 or higher.`;
    case 'EADDRNOTAVAIL':
      return `${address} is not an address of this machine. Set another host.`;
    default:
      return undefined;
  }
}
