import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const directory = process.env.SVC_TEST_DATA ?? fileURLToPath(new URL('../../../shared/data', import.meta.url));

/** A public corpus that is read in place and is not part of this project; undefined, with a message, if it is not available. */
export function corpus<T>(file: string): T | undefined {
  const path = `${directory}/${file}`;
  if (existsSync(path)) return JSON.parse(readFileSync(path, 'utf8')) as T;
  console.warn(`${file} is not at hand (SVC_TEST_DATA): the tests that read it are skipped`);
  return undefined;
}
