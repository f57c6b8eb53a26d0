/** Just enough of a browser to sign in: it keeps cookies per host, and follows redirects when told to. */
export class Visitor {
  readonly #jars = new Map<string, Map<string, string>>();
  readonly #hosts: Readonly<Record<string, string>>;

  /** `hosts`: the test's own names -> where they listen, such as `control.test` -> `127.0.0.1:1234`. */
  constructor(hosts: Record<string, string> = {}) {
    this.#hosts = hosts;
  }

  /** Sends one request, without following redirects. */
  async send(url: string, init: RequestInit = {}): Promise<Response> {
    const target = new URL(url);
    target.host = this.#hosts[target.host] ?? target.host;
    const jar = this.cookies(url);
    const response = await fetch(target, {
      ...init,
      redirect: 'manual',
      headers: {
        ...(init.headers as Record<string, string>),
        ...(jar.size > 0 && { cookie: [...jar].map(([name, value]) => `${name}=${value}`).join('; ') }),
      },
    });
    for (const line of response.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line)!;
      if (value === '' || /expires=Thu, 01 Jan 1970/i.test(line)) jar.delete(name!);
      else jar.set(name!, value!);
    }
    return response;
  }

  /** Follows redirects until one leads to `stop` (a prefix of the URL), and returns that; or the last response. */
  async follow(url: string, init: RequestInit = {}, stop?: string): Promise<{ url: string; response?: Response }> {
    let at = url;
    let response = await this.send(at, init);
    for (let steps = 0; response.status >= 300 && response.status < 400; steps++) {
      if (steps > 20) throw new Error(`too many redirects, at last to ${at}`);
      at = new URL(response.headers.get('location')!, at).href;
      if (stop && at.startsWith(stop)) return { url: at };
      response = await this.send(at);
    }
    return { url: at, response };
  }

  /** The cookies kept for the host of a URL. */
  cookies(url: string): Map<string, string> {
    const { host } = new URL(url);
    const jar = this.#jars.get(host) ?? new Map<string, string>();
    this.#jars.set(host, jar);
    return jar;
  }
}
