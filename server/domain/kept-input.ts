import { randomFew, sha256Tag } from '../lib/crypto.ts';

/**
 * What a decision was based on, kept outside the chain so that it can be erased. A record has only salted hashes of it: once salt
 * and text are gone, they reveal nothing, not even an amount that could be guessed.
 *
 * The two halves are erased on separate schedules: `input` is the whole request, `projection` the part of it that the policies
 * read. Salts are 16 bytes in hex; the texts are canonical JSON.
 */
export interface KeptInput {
  salt_a?: string | undefined;
  projection?: string | undefined;
  salt_b?: string | undefined;
  input?: string | undefined;
}

/** The members of a record that commit to what is kept. */
export interface Commitments {
  ask_commit?: string | undefined;
  input_hash?: string | undefined;
  action_ref?: string | undefined;
}

/** Maximum size in bytes of a text that proxies keep and ingest accepts. */
export const MOST_KEPT_BYTES = 256 * 1024;

const SALT_BYTES = 16;

/** `sha256:<hex>` over the bytes of the salt, then the text. */
export function commitment(salt: string, text: string): string {
  const most = salt.length / 2 + 3 * text.length;
  const bytes = most > scratch.length ? Buffer.allocUnsafe(most) : scratch;
  const begin = bytes.write(salt, 'hex');
  return sha256Tag(bytes.subarray(0, begin + bytes.write(text, begin)));
}
/** A single call that hashes concatenated bytes takes half as long as a hash object. */
const scratch = Buffer.allocUnsafe(16 * 1024);

/** Commits to the given texts, each with a fresh salt. */
export function commit(
  { projection, input }: { projection: string | undefined; input: string | undefined },
  actionHash: string,
): { kept: KeptInput | undefined; commitments: Commitments } {
  if (projection === undefined && input === undefined) return { kept: undefined, commitments: {} };
  const salts = randomFew(2 * SALT_BYTES).toString('hex');
  const salt_a = projection === undefined ? undefined : salts.slice(0, 2 * SALT_BYTES);
  const salt_b = input === undefined ? undefined : salts.slice(2 * SALT_BYTES);
  return {
    kept: { salt_a, projection, salt_b, input },
    commitments: {
      ask_commit: salt_a && commitment(salt_a, projection!),
      input_hash: salt_b && commitment(salt_b, input!),
      action_ref: salt_b && commitment(salt_b, actionHash),
    },
  };
}

/** Which half of the kept data does not match the record's commitment; undefined if everything that is there matches. */
export function unfitting(
  { salt_a, projection, salt_b, input }: KeptInput,
  { ask_commit, input_hash }: Commitments,
): 'projection' | 'input' | undefined {
  const fits = (salt: string | undefined, text: string | undefined, committed: string | undefined) =>
    salt === undefined || text === undefined ? salt === text : commitment(salt, text) === committed;
  if (!fits(salt_a, projection, ask_commit)) return 'projection';
  return fits(salt_b, input, input_hash) ? undefined : 'input';
}
