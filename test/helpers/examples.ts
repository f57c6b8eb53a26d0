import { writeFileSync } from 'node:fs';
import type { Example } from '../../server/api/examples.ts';

/** Longer examples teach no one anything. */
const MOST_CHARACTERS = 4000;

/** Examples of requests and responses, taken from tests, for the OpenAPI document. */
export class ExampleRecorder {
  readonly #examples: Record<string, Example> = {};

  /** Keeps the first response of a route, without secrets and with two entries per list. */
  answer(line: string, body: unknown): void {
    const shown = short(body);
    if (JSON.stringify(shown).length > MOST_CHARACTERS) return;
    this.#examples[line] = { ...this.#examples[line], answer: this.#examples[line]?.answer ?? shown };
  }

  request(line: string, body: unknown): void {
    this.#examples[line] = { ...this.#examples[line], request: short(body) };
  }

  write(): void {
    const sorted = Object.fromEntries(Object.entries(this.#examples).sort(([a], [b]) => (a < b ? -1 : 1)));
    writeFileSync(
      new URL('../../server/api/examples.json', import.meta.url),
      `${JSON.stringify(sorted, undefined, 2)}\n`,
    );
  }
}

function short(value: unknown): unknown {
  if (Array.isArray(value)) return value.slice(0, 2).map(short);
  if (typeof value === 'string') {
    return value
      .replace(/svc_(key|agent|link|invite|token)_[\w-]+/g, 'svc_$1_EXAMPLE')
      .replace(/http:\/\/(127\.0\.0\.1:\d+|control\.test)/g, 'https://control.example');
  }
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, short(member)]));
}
