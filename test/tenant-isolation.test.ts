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
});
