import { readFileSync } from 'node:fs';

type Env = Readonly<Record<string, string | undefined>>;

/** An upstream's credential cannot be read now. The message may be shown; `detail` is for the log. */
export class CredentialError extends Error {
  override readonly name = 'CredentialError';
  readonly detail: string;

  constructor(detail: string) {
    super('a credential of the upstream cannot be read');
    this.detail = detail;
  }
}

const PLACE = /\$\{(?:(\w+)|file:([^}]+))\}/g;

/**
 * The text with `${NAME}` replaced from the environment and `${file:/path}` from a file (without its trailing line end), by their
 * current values. Throws a CredentialError, which contains neither.
 */
export function filled(text: string, env: Env): string {
  return text.replace(PLACE, (_, name: string | undefined, file: string | undefined) => {
    if (name !== undefined) {
      if (!env[name]) throw new CredentialError(`the environment has no ${name}`);
      return env[name];
    }
    let content: string;
    try {
      content = readFileSync(file!, 'utf8').replace(/\r?\n$/, '');
    } catch (error) {
      throw new CredentialError(`${file} cannot be read (${(error as NodeJS.ErrnoException).code})`);
    }
    if (content === '') throw new CredentialError(`${file} is empty`);
    return content;
  });
}

/**
 * Headers whose values are filled in at each use, so that a credential in a file can be changed. Reading a value throws a
 * CredentialError if it cannot be filled in, or would end the header.
 */
export function filledHeaders(headers: Readonly<Record<string, string>>, env: Env): Record<string, string> {
  const all = {};
  for (const [name, text] of Object.entries(headers)) {
    const get = () => {
      const value = filled(text, env);
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      if (/[\x00-\x08\x0a-\x1f\x7f]/.test(value)) throw new CredentialError('has a control character');
      return value;
    };
    Object.defineProperty(all, name.toLowerCase(), { enumerable: true, get });
  }
  return all;
}
