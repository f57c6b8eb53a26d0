import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import type pg from 'pg';
import { departures, hasLeftWith } from '../../../db/moves.ts';
import { chainOfFile, highestInFile } from '../../chain/checkpoint-file.ts';
import { isSuperseded, RECORDS, readLosses } from '../../chain/loss.ts';
import type { ChainName } from '../../chain/record.ts';
import type { KeysOf } from '../../chain/standing.ts';
import type { Config } from '../../config.ts';
import {
  type FormerKeyRow,
  keysOfChain,
  openFormerKey,
  openSigningKey,
  type SigningKeyRow,
} from '../../keys/keyring.ts';
import { SecretBox } from '../../lib/crypto.ts';
import { findMasterKey, masterKeyFile } from '../installation.ts';
import type { Report } from './report.ts';

/** If a chain's newest record is older than this and unsigned, no server is signing the chain. */
const UNSIGNED_MINUTES = 5;

/**
 * Resolves to the trusted public keys: those whose private key the master key opens, and those of the installations that tenants
 * came from.
 */
export async function checkKeys(client: pg.Client, config: Config, report: Report): Promise<KeysOf | undefined> {
  const canary = await client.query<{ canary: Buffer }>('select canary from instance');
  const key = findMasterKey(config);
  if (!canary.rows[0]) {
    report('ok', 'master key', 'the database has no secrets yet');
    return () => [];
  }
  if (!key) {
    report('FAIL', 'master key', 'there is none', `set SVC_MASTER_KEY(_FILE), or put it into ${masterKeyFile(config)}`);
    return undefined;
  }
  const box = new SecretBox(key);
  const id = box.keyId.toString('hex');
  try {
    box.open(canary.rows[0].canary, 'instance/canary');
    report('ok', 'master key', `${id} opens this database`);
  } catch (error) {
    report(
      'FAIL',
      'master key',
      `${id}: ${(error as Error).message}`,
      'set the key that this database was created with',
    );
    return undefined;
  }
  const { rows } = await client.query<SigningKeyRow>('select * from signing_key order by created_at');
  const keys = rows.flatMap((row) => {
    try {
      return [openSigningKey(box, row)];
    } catch (error) {
      const advice = 'the table was changed: find out by whom, then restore the row from a backup or delete it';
      report('FAIL', 'signing key', (error as Error).message, advice);
      return [];
    }
  });
  const current = keys.filter(({ retiredAt }) => !retiredAt);
  if (current.length === 1) report('ok', 'signing key', `${current[0]!.kid} signs, ${keys.length - 1} retired`);
  else report('FAIL', 'signing key', `${current.length} keys are current`, 'run "svc keys rotate"');
  const { rows: former } = await client.query<FormerKeyRow>('select * from former_key');
  const formerKeys = former.flatMap((row) => {
    try {
      return [openFormerKey(box, row)];
    } catch (error) {
      report('FAIL', 'former key', (error as Error).message, 'the table was changed: find out by whom');
      return [];
    }
  });
  const own = keys.map(({ publicKey }) => publicKey);
  return (tenantId, chain) => keysOfChain(own, formerKeys, tenantId, chain);
}

/** The heads of all chains, compared with their records and their newest checkpoints. */
export async function checkChains(client: pg.Client, report: Report): Promise<void> {
  const tenants = await client.query<{ count: number }>('select count(*)::int as count from tenant');
  report('ok', 'tenants', String(tenants.rows[0]!.count));
  const { rows } = await client.query<{ chain: string; seq: string; signed: string | null; age: number | null }>(
    `select h.tenant_id || '/' || h.chain as chain, h.seq, c.seq as signed,
       extract(epoch from now() - coalesce(f.received_at, a.received_at))::float8 as age
     from chain_head h
     left join lateral (select seq from chain_checkpoint where tenant_id = h.tenant_id and chain = h.chain
       order by seq desc limit 1) c on true
     left join forensic_record f on h.chain = 'forensics' and f.tenant_id = h.tenant_id and f.seq = h.seq
     left join audit_record a on h.chain = 'audit' and a.tenant_id = h.tenant_id and a.seq = h.seq
     where h.seq > 0 and h.seq <> coalesce(c.seq, 0)`,
  );
  const some = (list: typeof rows) =>
    `${list
      .slice(0, 3)
      .map((row) => row.chain)
      .join(', ')}${list.length > 3 ? ` and ${list.length - 3} more` : ''}`;
  const cut = rows.filter((row) => Number(row.signed ?? 0) > Number(row.seq));
  const headless = rows.filter((row) => row.age === null);
  const late = rows.filter((row) => (row.age ?? 0) > UNSIGNED_MINUTES * 60);
  if (cut.length > 0)
    report(
      'FAIL',
      'chains',
      `shorter than the signed checkpoint: ${some(cut)}`,
      'the records were tampered with or come from an old backup: verify the chains',
    );
  if (headless.length > 0)
    report(
      'FAIL',
      'chains',
      `the newest record is missing: ${some(headless)}`,
      'the records were tampered with: verify the chains',
    );
  if (late.length > 0) {
    report(
      'warn',
      'chains',
      `records older than ${UNSIGNED_MINUTES} min are not signed: ${some(late)}`,
      'the server signs every minute while it runs: start it, or see its log',
    );
  }
  if (cut.length + headless.length + late.length === 0) report('ok', 'chains', 'checkpoints cover the newest records');
}

/** Finds chains with missing records, using the alarms that servers raised and the local checkpoint files. */
export async function checkKnown(
  client: pg.Client,
  config: Config,
  keysOf: KeysOf | undefined,
  report: Report,
): Promise<void> {
  const advice = 'find the cause and recover the records, or run "svc chain accept-loss"; see docs/chain.md';
  const alarms = await client.query<{ tenant_id: string; chain: ChainName; reason: string }>(
    'select tenant_id, chain, reason from chain_alarm order by tenant_id, chain',
  );
  for (const { tenant_id, chain, reason } of alarms.rows) {
    report('FAIL', 'closed chain', `${tenant_id}/${chain}: ${reason}`, advice);
  }
  const moves = await client.query<{ tenant_id: string; direction: string; address: string; since: string }>(
    `select tenant_id, direction, address, changed_at::text as since from tenant_move
     where state in ('fencing', 'fenced', 'copying') order by tenant_id`,
  );
  for (const { tenant_id, direction, address, since } of moves.rows) {
    const out = direction === 'out';
    const what = out ? `is moving to ${address} and answers 503` : `is arriving from ${address}`;
    const again = 'run "svc tenant move" again, or with --undo';
    const remedy = out ? again : `there ${again}; or, to delete the copy here, with --abandon ${address}`;
    report('warn', 'tenant moves', `${tenant_id} ${what} since ${since}`, remedy);
  }
  if (!keysOf) {
    const advice = 'set the master key: without it the signatures cannot be verified';
    report('warn', 'checkpoint files', 'not compared with the chains', advice);
    return;
  }
  const directory = path.join(config.dataDir, 'checkpoints');
  const files = existsSync(directory)
    ? readdirSync(directory)
        .map(chainOfFile)
        .filter((of) => of !== undefined)
    : [];
  const key = findMasterKey(config);
  const left = key ? await departures(client, new SecretBox(key)) : new Map<string, undefined>();
  for (const [tenantId, departure] of left) {
    if (!departure) {
      const remedy = 'the table was changed: find out by whom, then restore the row from a backup or delete it';
      report(
        'FAIL',
        'tenant moves',
        `what says that ${tenantId} has left was not written by this installation`,
        remedy,
      );
    } else if (departure.state === 'moved') {
      const { rowCount } = await client.query('select 1 from forensic_record where tenant_id = $1 limit 1', [tenantId]);
      const what = `${tenantId} has moved to ${departure.address}`;
      const remedy = 'when you are sure, run "svc tenant move" with --forget: nothing is erased in it any more';
      if (rowCount) report('warn', 'tenant moves', `${what}; its records are still here`, remedy);
      else report('ok', 'tenant moves', what);
    }
  }
  let wrong = 0;
  for (const { tenantId, chain } of files) {
    const name = `${tenantId}/${chain}`;
    try {
      const keys = keysOf(tenantId, chain);
      const heads = await highestInFile(directory, tenantId, chain, keys);
      const losses = await readLosses(client, tenantId, chain, keys);
      for (const { seq, hash, generation } of heads.filter((head) => !isSuperseded(losses, head))) {
        const { rows } = await client.query<{ hash: Buffer }>(
          `select hash from ${RECORDS[chain].table} where tenant_id = $1 and seq = $2`,
          [tenantId, seq],
        );
        if (rows[0]?.hash.toString('hex') === hash || hasLeftWith(left.get(tenantId), chain, { seq, hash })) continue;
        wrong++;
        const which = generation ? ` (after loss ${generation})` : '';
        report('FAIL', 'checkpoint file', `${name} does not hold checkpoint ${seq} of its file${which}`, advice);
      }
    } catch (error) {
      wrong++;
      report('FAIL', 'checkpoint file', `${name}: ${(error as Error).message}`, advice);
    }
  }
  const { rows: disputed } = await client.query<{ tenant_id: string; rules: string[] }>(
    `select tenant_id, array_agg(distinct target_id) as rules from audit_record
     where action = 'policy.evaluation_disputed' group by tenant_id order by tenant_id`,
  );
  for (const { tenant_id, rules } of disputed) {
    report(
      'warn',
      'policy engine',
      `${tenant_id}: the compiled conditions of ${rules.join(', ')} differed from Cedar, which alone is asked about them`,
      'report it with the text of the statement: it is a fault of this program',
    );
  }
  if (alarms.rows.length + wrong === 0) {
    report('ok', 'known heads', `no chain is closed; ${files.length} checkpoint files match their chains`);
  }
}
