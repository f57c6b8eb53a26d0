import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { Member, Tenant } from '../db/entities/index.ts';
import { useDatabase } from './helpers/database.ts';

const box = useDatabase();

describe('two tenants in one database', () => {
  test('a scoped transaction sees and writes only its own tenant, by filter and by row level security', async () => {
    const at = new Date();
    for (const id of ['a', 'b']) {
      await box.db.owner.query('insert into tenant values ($1, $1, $2, $3)', [id, '{}', at]);
      await box.db.transaction(id, async (em) => {
        em.create(Member, {
          tenantId: id,
          id: `u_${id}`,
          email: `${id}@x.test`,
          name: id,
          roles: ['admin'],
          createdAt: at,
        });
      });
    }
    const seen = await box.db.reader('a').find(Member, {});
    expect(seen.map((m) => m.id)).toEqual(['u_a']);
    const unfiltered = await box.db.reader('a').find(Member, {}, { filters: false });
    expect(unfiltered.map((m) => m.id)).toEqual(['u_a']);
    expect(await box.db.query('a', 'select id from member')).toEqual([{ id: 'u_a' }]);
    expect(await box.db.query('', 'select id from member')).toEqual([]);
    await expect(
      box.db.transaction('a', async (em) => {
        em.create(Member, { tenantId: 'b', id: 'evil', email: 'e@x.test', name: 'e', roles: [], createdAt: at });
      }),
    ).rejects.toThrow(/row-level security/i);
    expect((await box.db.reader('b').find(Tenant, {})).map((t) => t.tenantId)).toEqual(['b']);
  });
  // row-level security is the other layer: a statement that lacks its predicate would reach every tenant without it
  test('every statement on a table of tenants names the tenant itself', async () => {
    const { rows } = await box.db.owner.query<{ table: string }>(
      `select c.table_name as table from information_schema.columns c join information_schema.tables t
         using (table_schema, table_name)
       where c.table_schema = 'public' and c.column_name = 'tenant_id' and t.table_type = 'BASE TABLE'`,
    );
    const tables = new Set(rows.map((row) => row.table));
    const root = path.dirname(import.meta.dirname);
    const found: string[] = [];
    let statements = 0;
    for (const file of globSync(['server/**/*.ts', 'db/*.ts'], { cwd: root })) {
      // commands of the operator on the whole database
      if (/^server\/cli\/(?:restore|backup|doctor|installation)/.test(file)) continue;
      const source = readFileSync(path.join(root, file), 'utf8');
      for (const { 0: literal, index } of source.matchAll(/`[^`]*`|'[^'\n]*'/g)) {
        const named = [...literal.matchAll(/\b(?:from|update|into) (\w+)/g)].some(([, table]) => tables.has(table!));
        if (!named || !/^.\s*(?:with|select|insert|update|delete)\b/.test(literal)) continue;
        statements++;
        // a parameter, since a join on the tenant's column holds for each tenant
        if (/\btenant_id = (?:any\()?(?:\?|\$)/.test(literal) || /\binsert into \w+[^)]*\btenant_id\b/.test(literal))
          continue;
        // conditions that are put together begin with the tenant
        if (literal.includes('where.sql}') || literal.includes('indexed.sql}')) {
          if (/\btenant_id = \$(?:1|\{)/.test(source)) continue;
        }
        // which tenants have something to do, and nothing else of them
        if (/^.\s*select (?:distinct )?(?:\w\.)?tenant_id from\b/.test(literal)) continue;
        // jobs that serve all tenants ask as the owner, or as the owner where a tenant is; so are destinations claimed
        if (
          /(?:\b(?:(?:owner|near|nearOf\([^()]*\))\.query(?:<[^(]*>)?\(|across(?:<[^(]*>)?\(\s*[\w.#]+,)|\.#lease\(\s*claim,)\s*$/.test(
            source.slice(0, index),
          )
        )
          continue;
        // what such a job deletes in batches: as the owner, of one tenant where tenants are on nodes of their own
        if (
          /\b(?:deleteInBatches|inBatches)\([^`]*\(limit\) =>\s*$/.test(source.slice(0, index)) &&
          literal.includes('${only(')
        )
          continue;
        found.push(`${file}: ${literal.replace(/\s+/g, ' ').slice(0, 120)}`);
      }
    }
    expect(found).toEqual([]);
    expect(statements).toBeGreaterThan(150);
  });
});
