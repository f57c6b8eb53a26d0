/** Parses a PostgreSQL address that lists several hosts, as libpq reads it. Pure. */

/** One host of the address, and the address with only that host, which every PostgreSQL client understands. */
export interface DatabaseHost {
  readonly host: string;
  readonly port: number;
  readonly url: string;
}

/**
 * The hosts of `postgres://user:password@host1:5432,host2/database`, in order. An address not of this form has one host, and is
 * returned unchanged. Throws, without showing any of it, if several hosts are given and one is wrong.
 */
export function databaseHosts(url: string): DatabaseHost[] {
  const [, scheme = '', authority = '', rest = ''] = /^(postgres(?:ql)?:\/\/)([^/?#]*)(.*)$/s.exec(url) ?? [];
  const at = authority.lastIndexOf('@') + 1;
  const places = authority.slice(at).split(',');
  if (places.length === 1) return [{ host: '', port: 0, url }];
  const query = new URLSearchParams(/\?([^#]*)/.exec(rest)?.[1]);
  // the program writes: a host list that allows a standby is a mistake
  if (!['read-write', 'primary'].includes(query.get('target_session_attrs') ?? 'read-write')) {
    throw new Error('target_session_attrs must be read-write or primary');
  }
  if (query.has('host') || query.has('port')) throw new Error('hosts and ports belong before the name of the database');
  const path = rest.replace(/([?&])target_session_attrs=[^&#]*&?/, '$1').replace(/[?&]$/, '');
  return places.map((place) => {
    const [, host, port = '5432'] = /^(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?$/i.exec(place.trim()) ?? [];
    if (host === undefined || Number(port) < 1 || Number(port) > 65535)
      throw new Error('a host must be name:port, such as db-1:5432');
    const one = `${scheme}${authority.slice(0, at)}${host}:${port}${path}`;
    return { host: host.replace(/^\[(.+)\]$/, '$1'), port: Number(port), url: one };
  });
}
