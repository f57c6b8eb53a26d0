import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeAll } from 'vitest';
import { type Database, openDatabase } from '../../db/index.ts';
import { databaseServer } from './provisions.ts';

/** The test file's own database, cloned from the migrated template. Created before the first test, dropped at the end. */
export function useDatabase(): { readonly url: string; readonly db: Database } {
  const box = {} as { url: string; db: Database };
  const name = `t_${randomBytes(6).toString('hex')}`;
  beforeAll(async () => {
    box.url = await cloneTemplate(name);
    box.db = await openDatabase(box.url, { poolSize: 5 });
  });
  afterAll(async () => {
    await box.db?.close();
    await asAdmin(`drop database if exists ${name} with (force)`);
    // the process keeps what a file declared alive for all files after it
    Object.assign(box, { db: undefined });
  });
  return box;
}

/** Creates a database from the migrated template. Resolves with its URL. */
export async function cloneTemplate(name: string): Promise<string> {
  await asAdmin(`create database ${name} template template_svc strategy file_copy owner svc_owner`);
  return (await databaseServer()).databaseUrl.replace('NAME', name);
}

export async function asAdmin(sql: string): Promise<void> {
  const client = new pg.Client((await databaseServer()).adminUrl);
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}
