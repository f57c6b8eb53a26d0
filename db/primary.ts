import pg from 'pg';
import { type DatabaseHost, databaseHosts } from '../server/lib/database-hosts.ts';
import { patient } from '../server/lib/patience.ts';

/** How long a host has to answer. More than a round trip takes, and short enough to ask again within CONNECT_MS. */
const PROBE_MS = 3000;
/** After one host reported that it takes writes, how long the others have to contradict. */
const CONTRADICTION_MS = 250;
/** How long an answer is trusted: connections opened together ask once. */
const FRESH_MS = 1000;

/**
 * A connection to the host that takes writes, when the address names several: the hosts are asked each time a connection is made,
 * so it is the current primary. With a single host it is a plain connection.
 */
export class PrimaryClient extends pg.Client {
  readonly #primary: Primary | undefined;

  constructor(config?: string | pg.ClientConfig) {
    const given: pg.ClientConfig = typeof config === 'string' ? { connectionString: config } : (config ?? {});
    const hosts = given.connectionString === undefined ? [] : databaseHosts(given.connectionString);
    super(hosts.length > 1 ? { ...given, connectionString: hosts[0]!.url } : given);
    if (hosts.length > 1) this.#primary = primaryOf(given.connectionString!, hosts);
  }

  override connect(): Promise<this>;
  override connect(callback: (error: Error) => void): void;
  override connect(callback?: (error: Error) => void): Promise<this> | undefined {
    const connected = this.#primary ? this.#connectTo(this.#primary) : super.connect();
    if (!callback) return connected as Promise<this>;
    connected.then(() => callback(undefined as unknown as Error), callback);
    return undefined;
  }

  async #connectTo(primary: Primary): Promise<unknown> {
    const { host: found, timeline } = await primary.find();
    const { host, port } = found;
    // the host to dial, and the name that TLS checks
    Object.assign(this, { host, port });
    primary.watch(this, timeline);
    // the server reports this itself, and again when it is promoted
    let standby = false;
    this.connection.on('parameterStatus', ({ parameterName, parameterValue }: Record<string, string>) => {
      if (parameterName === 'in_hot_standby') standby = parameterValue === 'on';
    });
    try {
      await super.connect();
      if (!standby) return this;
      await this.end();
      throw cannotConnect(`${host}:${port} is read-only by now`);
    } catch (error) {
      primary.forget();
      throw error;
    }
  }

  /** Cuts the connection; whatever is in progress on it rejects. */
  cut(): void {
    this.connection.stream.destroy();
  }
}

const primaries = new Map<string, Primary>();

function primaryOf(url: string, hosts: readonly DatabaseHost[]): Primary {
  const known = primaries.get(url) ?? new Primary(hosts);
  primaries.set(url, known);
  return known;
}

/** A host that takes writes. */
interface Answer {
  readonly host: DatabaseHost;
  /** How many promotions came before. */
  readonly timeline: number;
}

/**
 * Determines which host takes writes. All are asked at the same time. If two claim it, for example when a former primary came
 * back unaware that it was replaced, the one promoted last wins; and a host that is behind a promotion this process has seen is
 * never used again. Existing connections to such a host are cut.
 */
class Primary {
  readonly #hosts: readonly DatabaseHost[];
  #asking: Promise<Answer> | undefined;
  #known: { answer: Answer; until: number } | undefined;
  /** The latest that any host reported, even one too late to be chosen. */
  #timeline = 0;
  /** Connections with the timeline of their host. */
  readonly #open = new Map<PrimaryClient, number>();

  constructor(hosts: readonly DatabaseHost[]) {
    this.#hosts = hosts;
  }

  forget(): void {
    this.#known = undefined;
  }

  watch(client: PrimaryClient, timeline: number): void {
    this.#open.set(client, timeline);
    client.once('end', () => this.#open.delete(client));
  }

  /** Rejects with an error that counts as a fault of the database, and lists what each host answered. */
  async find(): Promise<Answer> {
    if (this.#known && performance.now() < this.#known.until) return this.#known.answer;
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  #saw(timeline: number): void {
    if (timeline <= this.#timeline) return;
    this.#timeline = timeline;
    this.forget();
    for (const [client, theirs] of this.#open) if (theirs < timeline) client.cut();
  }

  async #ask(): Promise<Answer> {
    const reasons: string[] = [];
    let best: Answer | undefined;
    let settle: () => void = () => undefined;
    const contradicted = new Promise<void>((resolve) => {
      settle = () => setTimeout(resolve, CONTRADICTION_MS);
    });
    const asked = this.#hosts.map(async (host) => {
      const name = `${host.host}:${host.port}`;
      try {
        const timeline = await ask(host);
        if (timeline === undefined) reasons.push(`${name} is read-only`);
        else if (timeline < this.#timeline) reasons.push(`${name} is a former primary (timeline ${timeline})`);
        else {
          this.#saw(timeline);
          if (best && timeline <= best.timeline) return;
          best = { host, timeline };
          settle();
        }
      } catch (error) {
        reasons.push(`${name}: ${(error as Error).message || (error as NodeJS.ErrnoException).code}`);
      }
    });
    await Promise.race([Promise.all(asked), contradicted]);
    if (!best) {
      throw cannotConnect(reasons.join(', '));
    }
    this.#known = { answer: best, until: performance.now() + FRESH_MS };
    return best;
  }
}

function cannotConnect(why: string): Error {
  return Object.assign(new Error(`no host of the database takes writes: ${why}`), { code: '57P03' });
}

/** The timeline of a host; undefined if it takes no writes. */
async function ask(host: DatabaseHost): Promise<number | undefined> {
  const client = new pg.Client({
    connectionString: host.url,
    connectionTimeoutMillis: patient(PROBE_MS),
    query_timeout: patient(PROBE_MS),
  });
  client.on('error', () => undefined);
  try {
    await client.connect();
    // the timeline of what is written now: the control file's lags for a moment after a promotion
    const { rows } = await client.query<{ timeline: string | null }>(
      `select case when not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'
         then left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline`,
    );
    const timeline = rows[0]?.timeline;
    return timeline ? Number.parseInt(timeline, 16) : undefined;
  } finally {
    client.end().catch(() => undefined);
  }
}
