import { parentPort } from 'node:worker_threads';
import { Ajv, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import type { SchemaAnswer, SchemaQuestion } from './schema-check.ts';

/** The thread of `SchemaCheck`. */
const port = parentPort;
if (!port) throw new Error('this file is the entry of a worker thread');

const MOST_SCHEMAS = 500;
const compiled = new Map<string, ValidateFunction | undefined>();

const OPTIONS = {
  // unknown keywords are allowed, as the standard says; formats are annotations
  strict: false,
  validateFormats: false,
  logger: false,
  // what the object inherits from its prototype is not an argument
  ownProperties: true,
} as const;

port.on('message', ({ schema, value }: SchemaQuestion) => {
  const check = validator(schema);
  const fault = !check ? 'the schema of the tool cannot be read' : check(value) === true ? null : faultOf(check);
  port.postMessage({ fault } satisfies SchemaAnswer);
});
// its time starts only now: the time it took to get here is not a schema's fault
port.postMessage({ ready: true } satisfies SchemaAnswer);

/** Where and what, such as `/labels must be array`: without the value. */
function faultOf({ errors }: ValidateFunction): string {
  const [first] = errors ?? [];
  return `${first?.instancePath || '/'} ${first?.message ?? 'does not fit the schema'}`;
}

/** Undefined for an invalid schema, or one that refers to another document. */
function validator(schema: unknown): ValidateFunction | undefined {
  const text = JSON.stringify(schema);
  if (compiled.has(text)) return compiled.get(text);
  let check: ValidateFunction | undefined;
  try {
    const { $schema } = schema as { $schema?: unknown };
    // MCP 2025-11-25: without `$schema`, it is 2020-12
    const old = typeof $schema === 'string' && /draft-0[67]/.test($schema);
    check = new (old ? Ajv : Ajv2020)(OPTIONS).compile(schema as object);
  } catch {
    check = undefined;
  }
  if (compiled.size >= MOST_SCHEMAS) compiled.delete(compiled.keys().next().value as string);
  compiled.set(text, check);
  return check;
}
