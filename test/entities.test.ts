import { MikroORM, PostgreSqlDriver } from '@mikro-orm/postgresql';
import { expect, test } from 'vitest';
import { entities } from '../db/entities/index.ts';
import { useDatabase } from './helpers/database.ts';

const box = useDatabase();

test('every table has an entity, with its columns, its key and what may be null', async () => {
  const { rows } = await box.db.owner.query<{ table: string; column: string; nullable: boolean; key: boolean }>(
    `select c.relname as table, a.attname as column, not a.attnotnull and a.attgenerated = '' as nullable,
       coalesce(a.attnum = any (i.indkey), false) as key
     from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     left join pg_index i on i.indrelid = c.oid and i.indisprimary
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
       and c.relname <> 'schema_migration'`,
  );
  const tables = rows.map(({ table, column, nullable, key }) => `${table}.${column}${words({ nullable, key })}`);
  const orm = await MikroORM.init({ entities, driver: PostgreSqlDriver, dbName: 'none' });
  const known = [...orm.getMetadata().getAll().values()].flatMap((entity) =>
    entity.props.map(
      (prop) =>
        `${entity.tableName}.${prop.fieldNames[0]}${words({ nullable: prop.nullable === true && !prop.generated, key: prop.primary === true })}`,
    ),
  );
  await orm.close(true);
  expect(known.sort()).toEqual(tables.sort());
});

const words = ({ nullable, key }: { nullable: boolean; key: boolean }) =>
  `${key ? ' key' : ''}${nullable ? ' null' : ''}`;

test('every entity of a tenant is filtered by it', () => {
  const open = entities.filter((entity) => {
    const { properties, filters } = entity.meta;
    return 'tenantId' in properties && !filters?.tenant;
  });
  expect(open.map(({ meta }) => meta.tableName)).toEqual([]);
});
