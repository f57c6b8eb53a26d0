import type { EntityManager } from '@mikro-orm/postgresql';
import { ReferenceList } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import type { BundleList } from '../domain/lists.ts';
import { AppError } from '../errors.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';

export type ListStatus = 'pending' | 'approved' | 'rejected';

/** One version of a list, without its values. */
export interface ListVersionView {
  version: number;
  status: ListStatus;
  count: number;
  hash: string;
  added: number;
  removed: number;
  author_id: string;
  created_at: string;
  decided_by: string | null;
  decided_at: string | null;
  comment: string | null;
  /** Whether the values are still kept. */
  kept: boolean;
}

export interface ListView {
  name: string;
  version: number;
  live_version: number | null;
  newest: ListVersionView;
  /** The ids of the live policies that name it. */
  used_by: string[];
}

const CURSOR = 'list';
/** Maximum number of values in each part of a comparison. */
const MOST_DIFFERENT = 1_000;

/** Reads lists. */
export class ListQueries {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /** The names of the lists that a policy may name, sorted. */
  async names(tenantId: string): Promise<string[]> {
    const rows = await this.#db.query<{ name: string }>(
      tenantId,
      'select name from reference_list where tenant_id = $1 and deleted_at is null order by name',
      [tenantId],
    );
    return rows.map(({ name }) => name);
  }

  /** The values of these lists: of the live version, or else of the newest. Names without a list are omitted. */
  async valuesOf(em: EntityManager, tenantId: string, names: readonly string[]): Promise<BundleList[]> {
    if (names.length === 0) return [];
    return em.execute<BundleList[]>(
      `select l.name, v.version, v.items as values from reference_list l
       join reference_list_version v on v.tenant_id = l.tenant_id and v.name = l.name
         and v.version = coalesce(l.live_version, l.version)
       where l.tenant_id = ? and l.deleted_at is null and l.name in (${names.map(() => '?').join(', ')}) order by l.name`,
      [tenantId, ...names],
    );
  }

  async list(tenantId: string): Promise<ListView[]> {
    const em = this.#db.reader(tenantId);
    const lists = await em.find(ReferenceList, { deletedAt: null }, { orderBy: { name: 'asc' } });
    const newest = await this.#versions(
      tenantId,
      'v.version = (select version from reference_list l where l.tenant_id = $1 and l.name = v.name)',
    );
    const used = await usersOf(
      em,
      tenantId,
      lists.map(({ name }) => name),
    );
    return lists.map(({ name, version, liveVersion }) => ({
      name,
      version,
      live_version: liveVersion ?? null,
      newest: newest.find((one) => one.name === name)!.view,
      used_by: used.get(name) ?? [],
    }));
  }

  /** A list with its versions, newest first. */
  async get(tenantId: string, name: string): Promise<ListView & { versions: ListVersionView[] }> {
    const em = this.#db.reader(tenantId);
    const list = await em.findOne(ReferenceList, { name, deletedAt: null });
    if (!list) throw noList();
    const versions = (await this.#versions(tenantId, 'v.name = $2', name)).map(({ view }) => view);
    const used = await usersOf(em, tenantId, [name]);
    return {
      name,
      version: list.version,
      live_version: list.liveVersion ?? null,
      newest: versions[0]!,
      used_by: used.get(name) ?? [],
      versions,
    };
  }

  /** One page of a version's values, in ascending byte order; `q` matches a part of a value, ignoring case. */
  async values(
    tenantId: string,
    name: string,
    version: number,
    page: { q?: string | undefined; after?: string | undefined; limit: number },
  ): Promise<{ values: string[]; next: string | null }> {
    const last =
      page.after === undefined
        ? undefined
        : decodeURIComponent(openCursor(CURSOR, page.after, /^((?:[\w.~!*'()-]|%[0-9A-F]{2}){1,20000})$/)[0]!);
    await this.#kept(tenantId, name, version);
    const rows = await this.#db.query<{ item: string }>(
      tenantId,
      `select item from reference_list_version v, unnest(v.items) as item
       where v.tenant_id = $1 and v.name = $2 and v.version = $3
         and ($4::text is null or strpos(lower(item), lower($4)) > 0)
         and ($5::text is null or item collate "C" > $5)
       order by item collate "C" limit $6`,
      [tenantId, name, version, page.q ?? null, last ?? null, page.limit + 1],
    );
    const values = rows.slice(0, page.limit).map(({ item }) => item);
    const end = values.at(-1);
    return { values, next: rows.length > page.limit && end ? cursorOf(CURSOR, encodeURIComponent(end)) : null };
  }

  /** What was added and what was removed between two versions, up to 1,000 values each. */
  async diff(tenantId: string, name: string, from: number, to: number) {
    await Promise.all([this.#kept(tenantId, name, from), this.#kept(tenantId, name, to)]);
    const between = async (old: number, recent: number) => {
      const rows = await this.#db.query<{ item: string; total: number }>(
        tenantId,
        `select item, count(*) over ()::integer as total from (
           select unnest(items) collate "C" as item from reference_list_version
           where tenant_id = $1 and name = $2 and version = $3
           except
           select unnest(items) collate "C" from reference_list_version
           where tenant_id = $1 and name = $2 and version = $4) as changed
         order by item limit ${MOST_DIFFERENT}`,
        [tenantId, name, recent, old],
      );
      return { values: rows.map(({ item }) => item), total: rows[0]?.total ?? 0 };
    };
    const [added, removed] = await Promise.all([between(from, to), between(to, from)]);
    return { name, from, to, added, removed };
  }

  async #kept(tenantId: string, name: string, version: number): Promise<void> {
    const [found] = await this.#versions(tenantId, 'v.name = $2 and v.version = $3', name, version);
    if (!found) throw new AppError('NOT_FOUND', 'the list has no such version');
    if (!found.view.kept) throw new AppError('NOT_FOUND', 'the values of this version are no longer kept');
  }

  async #versions(tenantId: string, where: string, ...values: unknown[]) {
    const rows = await this.#db.query<VersionRow>(
      tenantId,
      `select v.name, v.version, v.status, v.count, v.hash, v.added, v.removed, v.author_id, v.created_at, v.decided_by,
         v.decided_at, v.comment, v.items is not null as kept
       from reference_list_version v where v.tenant_id = $1 and ${where} order by v.version desc`,
      [tenantId, ...values],
    );
    return rows.map(({ name, created_at, decided_at, ...row }) => ({
      name,
      view: { ...row, created_at: created_at.toISOString(), decided_at: decided_at?.toISOString() ?? null },
    }));
  }
}

interface VersionRow extends Omit<ListVersionView, 'created_at' | 'decided_at'> {
  name: string;
  created_at: Date;
  decided_at: Date | null;
}

export const noList = () => new AppError('NOT_FOUND', 'there is no such list');

/** The live policies that name each of these lists. */
export async function usersOf(
  em: EntityManager,
  tenantId: string,
  names: readonly string[],
): Promise<Map<string, string[]>> {
  if (names.length === 0) return new Map();
  const rows = await em.execute<{ list: string; policy_id: string }[]>(
    `select list, r.policy_id from policy p
     join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version,
     unnest(r.lists) as list
     where p.tenant_id = ? and list in (${names.map(() => '?').join(', ')}) order by list, r.policy_id`,
    [tenantId, ...names],
  );
  const found = Map.groupBy(rows, ({ list }) => list);
  return new Map([...found].map(([list, users]) => [list, users.map(({ policy_id }) => policy_id)]));
}

/** The total size in bytes and the number of the tenant's lists, excluding the named one. */
export async function sizeWithout(
  em: EntityManager,
  tenantId: string,
  name: string,
): Promise<{ lists: number; bytes: number }> {
  const [row] = await em.execute<{ lists: number; bytes: number }[]>(
    `select count(*)::integer as lists, coalesce(sum(bytes), 0)::integer as bytes from (
       select l.name, max(v.bytes) as bytes from reference_list l
       join reference_list_version v on v.tenant_id = l.tenant_id and v.name = l.name
         and v.version in (l.version, l.live_version)
       where l.tenant_id = ? and l.deleted_at is null and l.name <> ? group by l.name) as others`,
    [tenantId, name],
  );
  return row!;
}
