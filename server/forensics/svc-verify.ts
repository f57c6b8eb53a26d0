#!/usr/bin/env node
import { createPublicKey, type KeyObject } from 'node:crypto';
import { lstatSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { ArchiveError } from '../lib/tar.ts';
import type { HoldApproval } from './approvals.ts';
import { MANIFEST } from './archive.ts';
import {
  checkBundle,
  checkPackage,
  checkPackageFiles,
  type Report,
  readKeys,
  type StatedLoss,
  type Trust,
} from './check-package.ts';

/**
 * svc-verify: checks evidence packages and bundles offline. It uses pure files of this project only: no network, no
 * database, no clock.
 */

const HELP = `Usage: svc-verify PATH [options]

Checks an evidence package (the tar, or the directory it was unpacked into), a policy bundle, or a directory of those. Of
such a directory each folder, *.tar and *.svcb must verify; other files in it are not looked at.

  --pubkey FILE         the signer's public key as PEM, obtained elsewhere (the file may hold several keys)
  --jwks FILE           the signer's keys as a JSON Web Key Set, retired ones included
  --fingerprint HASH    sha256:<hex> of the signer's public key (packages only)
  --json                one JSON object instead of text
  --help                this text

A package contains its public key. Without one of these three options it is checked against that key, and you must
compare the printed fingerprint yourself. A bundle contains no key and needs --pubkey or --jwks.

Exit code: 0 verified; 1 not verified, which includes an authentic package of a chain that was broken before it was
exported; 2 wrong usage, or nothing to verify. Losses of records that an operator accepted are listed; they do not
change the exit code.
`;

/** Larger than any package with the maximum number of records; anything larger is not read. */
const MAX_BYTES = 1024 ** 3;
const MAX_FILES = 20_000;

/** Incorrect usage: exit code 2. */
class UsageError extends Error {}

type Found = Report & { path: string };

/** Runs the program with these arguments. Reads files and nothing else; returns the output and the exit code. */
export function svcVerify(args: readonly string[]): { exitCode: 0 | 1 | 2; stdout: string; stderr: string } {
  try {
    const { path, json, help, trust } = readArguments(args);
    if (help) return { exitCode: 0, stdout: HELP, stderr: '' };
    const reports = verifyPath(path, trust);
    const verified = reports.every((report) => report.verified);
    const stdout = json ? `${printable(JSON.stringify(asObject(path, reports, verified)))}\n` : asText(reports);
    return { exitCode: verified ? 0 : 1, stdout, stderr: '' };
  } catch (error) {
    const words = error instanceof UsageError ? error.message : `it failed: ${(error as Error).message}`;
    return {
      exitCode: error instanceof UsageError ? 2 : 1,
      stdout: '',
      stderr: `svc-verify: ${words.split('\n').map(plain).join('\n')}\n`,
    };
  }
}

function readArguments(args: readonly string[]): { path: string; json: boolean; help: boolean; trust: Trust } {
  const { values, positionals } = parse(args);
  const trust: Trust = {};
  if (values.fingerprint !== undefined && !/^sha256:[0-9a-f]{64}$/.test(values.fingerprint)) {
    throw new UsageError('--fingerprint takes sha256: and 64 hex digits');
  }
  if (!values.help && positionals.length !== 1) throw new UsageError(`give one PATH\n\n${HELP}`);
  const keys = [...(values.pubkey ?? []).flatMap(pemKeys), ...(values.jwks ?? []).flatMap(jwksKeys)];
  if (keys.length > 0) trust.keys = keys;
  trust.fingerprint = values.fingerprint;
  return { path: positionals[0] ?? '', json: values.json === true, help: values.help === true, trust };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        pubkey: { type: 'string', multiple: true },
        jwks: { type: 'string', multiple: true },
        fingerprint: { type: 'string' },
        json: { type: 'boolean' },
        help: { type: 'boolean' },
      },
    });
  } catch (error) {
    throw new UsageError(`${(error as Error).message}\n\n${HELP}`);
  }
}

function pemKeys(path: string): KeyObject[] {
  const pem = readAs('--pubkey', path);
  try {
    return readKeys(pem);
  } catch (error) {
    throw new UsageError(`--pubkey ${path}: ${(error as Error).message}`);
  }
}

function jwksKeys(path: string): KeyObject[] {
  const source = readAs('--jwks', path);
  try {
    const { keys } = JSON.parse(source) as { keys: { kty?: string; crv?: string; x?: string }[] };
    const found = keys
      .filter((jwk) => jwk.kty === 'OKP' && jwk.crv === 'Ed25519')
      .map(({ x = '' }) => createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' }));
    if (found.length > 0) return found;
  } catch (error) {
    throw new UsageError(`--jwks ${path}: this is not a key set (${(error as Error).message})`);
  }
  throw new UsageError(`--jwks ${path}: there is no Ed25519 key in it`);
}

function readAs(option: string, path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new UsageError(`${option} ${path}: ${(error as Error).message}`);
  }
}

function verifyPath(path: string, trust: Trust): Found[] {
  const kind = statSync(path, { throwIfNoEntry: false });
  if (!kind) throw new UsageError(`${path} does not exist`);
  if (kind.isFile()) return [verifyFile(path, kind.size, trust)];
  if (!kind.isDirectory()) throw new UsageError(`${path} is neither a file nor a directory`);

  const entries = list(path);
  if (entries.some((entry) => entry.name === MANIFEST)) return [verifyUnpacked(path, trust)];
  const found: Found[] = [];
  for (const entry of entries) {
    const inner = join(path, entry.name);
    // follows a link to its target
    const kind = statSync(inner, { throwIfNoEntry: false });
    const isNamed = /\.(tar|svcb)$/.test(entry.name);
    if (kind?.isDirectory()) found.push(verifyUnpacked(inner, trust));
    else if (isNamed && kind?.isFile()) found.push(verifyFile(inner, kind.size, trust));
    else if (isNamed) found.push(refused(inner, 'it is neither a file nor a directory'));
  }
  if (found.length === 0) throw new UsageError(`${path} holds no package (.tar) and no bundle (.svcb)`);
  return found;
}

function verifyFile(path: string, size: number, trust: Trust): Found {
  if (size > MAX_BYTES) return refused(path, 'the file is larger than any package');
  const bytes = read(path);
  if (bytes.subarray(0, 4).toString('latin1') !== 'SVCB') return { path, ...checkPackage(bytes, trust) };
  if (!trust.keys) throw new UsageError(`${path} is a bundle, which carries no key: give --pubkey FILE or --jwks FILE`);
  return { path, ...checkBundle(bytes, trust.keys) };
}

function verifyUnpacked(path: string, trust: Trust): Found {
  try {
    return { path, ...checkPackageFiles(readDirectory(path), trust) };
  } catch (error) {
    if (error instanceof ArchiveError) return refused(path, error.message);
    throw error;
  }
}

/** The files below a directory by their relative names; only plain files, as in the archive. */
function readDirectory(root: string): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>();
  let total = 0;
  const visit = (folder: string) => {
    for (const entry of list(join(root, folder))) {
      const name = folder === '' ? entry.name : `${folder}/${entry.name}`;
      const path = join(root, name);
      if (entry.isDirectory()) visit(name);
      else if (!entry.isFile()) throw new ArchiveError(`${name} is not a plain file`);
      else {
        total += lstatSync(path).size;
        if (files.size >= MAX_FILES || total > MAX_BYTES)
          throw new ArchiveError('the directory is larger than any package');
        files.set(name, read(path));
      }
    }
  };
  visit('');
  return files;
}

function list(path: string) {
  try {
    return readdirSync(path, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1));
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function read(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function refused(path: string, reason: string): Found {
  const checks = [{ name: 'archive', ok: false, detail: reason }];
  return { path, kind: 'package', verified: false, authentic: false, checks, notes: [], reason: `archive: ${reason}` };
}

function asObject(path: string, reports: readonly Found[], verified: boolean): object {
  const [only, ...more] = reports;
  return only?.path === path && more.length === 0 ? only : { verified, kind: 'directory', path, reports };
}

function asText(reports: readonly Found[]): string {
  const texts = reports.map(reportText);
  const failed = reports.filter((report) => !report.verified).length;
  if (texts.length > 1) texts.push(failed === 0 ? 'VERIFIED\n' : `NOT VERIFIED: ${failed} of ${texts.length}\n`);
  return texts.join('\n');
}

function reportText(report: Found): string {
  const lines = [`${report.kind} ${report.path}`];
  for (const { name, ok, detail } of report.checks) {
    lines.push(`  ${ok ? 'ok    ' : 'FAILED'}  ${name}${detail === undefined ? '' : `: ${detail}`}`);
  }
  for (const [label, value] of [
    ['package', report.package_id],
    ['package hash', report.package_hash],
    ['bundle hash', report.bundle_hash],
    ['tenant', report.tenant_id],
    ['records', records(report)],
    ['chain when it was made', headText(report)],
    ['key fingerprint', report.public_key_fingerprint],
  ]) {
    if (value !== undefined) lines.push(`  ${label}: ${value}`);
  }
  for (const { target_id, detail, action, actor, at, reason } of report.policies ?? []) {
    const why = reason === '' ? '' : `: ${JSON.stringify(reason)}`;
    lines.push(
      `  policy ${target_id}: ${action.replace('policy.', '').replace('_', ' ')} by ${actor} at ${at} (${detail})${why}`,
    );
  }
  for (const approval of report.approvals ?? []) lines.push(`  approval: ${approvalText(approval)}`);
  for (const loss of report.losses ?? []) lines.push(`  loss: ${lossText(loss)}`);
  for (const note of report.notes) lines.push(`  note: ${note}`);
  if (report.authentic && !report.verified)
    lines.push('  The package is authentic: it is signed evidence of a broken chain.');
  lines.push(report.verified ? 'VERIFIED' : `NOT VERIFIED: ${report.reason}`);
  return `${lines.map(plain).join('\n')}\n`;
}

function records({ record_count: count, first_seq: first, last_seq: last }: Report): string | undefined {
  if (count === undefined) return undefined;
  return first === null ? '0' : `${count} (${first} to ${last})`;
}

function headText({ chain_head: head, last_seq: last }: Report): string | undefined {
  if (!head) return undefined;
  const place = last === head.seq ? ', the last record of the package' : '';
  return `${head.seq} records${place}, at ${head.at}`;
}

/** Who approved a hold, in words. What people wrote is in quotes, so that it cannot pass for one more approval. */
function approvalText({ hold, records, terms, approved_by, conditions, fault }: HoldApproval): string {
  const quoted = (text: string) => JSON.stringify(text);
  const what = `hold ${hold} (record ${records.join(', ')}${terms === '' ? '' : `; ${quoted(terms)}`})`;
  const by = [
    ...approved_by.map(
      ({ actor, at, reason }) => `approved by ${actor} at ${at}${reason ? `: ${quoted(reason)}` : ''}`,
    ),
    ...conditions.map(({ condition, by, at }) => `${quoted(condition)} reported as met by ${by} at ${at}`),
  ];
  return `${what}: ${[...(by.length > 0 ? by : ['no approval']), ...(fault === undefined ? [] : [`NOT SHOWN: ${fault}`])].join('; ')}`;
}

/** An accepted loss in words. */
function lossText({ seq, id, received_at, reason, accepted }: StatedLoss): string {
  const record = `record ${seq} (${id}, ${received_at})`;
  if (!accepted) return `${record} claims one, but no key of the package signed it for this place: it accepts nothing`;
  const { agreed_seq: agreed, lost_seq: lost } = accepted;
  const what =
    lost > agreed
      ? `an operator accepted that records ${agreed + 1} to ${lost} as they were known are gone`
      : 'an operator accepted statements about the chain that no key had signed';
  return `${record}: ${what}. Reason: ${reason}`;
}

/** One line without control and format characters, so that a hostile file cannot control the reader's terminal. */
function plain(line: string): string {
  return line.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '?');
}

/** JSON in which such characters are escaped, for the same reason. */
function printable(json: string): string {
  const escaped = (char: string) =>
    Array.from({ length: char.length }, (_, n) => `\\u${char.charCodeAt(n).toString(16).padStart(4, '0')}`).join('');
  return json.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, escaped);
}

// Not import.meta.main: if this Node version lacks it, the program would do nothing and exit with 0.
if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const { exitCode, stdout, stderr } = svcVerify(process.argv.slice(2));
  process.stdout.write(stdout);
  process.stderr.write(stderr);
  process.exitCode = exitCode;
}
