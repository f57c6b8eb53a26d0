/** Characters that a terminal may take for a command, or that change how others look. */
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** A line that has text of a file in it, for a terminal: what is not plainly visible is written as JSON would write it. */
export function escaped(line: string): string {
  return line.replace(UNSAFE, (found) =>
    Array.from({ length: found.length }, (_, n) => `\\u${found.charCodeAt(n).toString(16).padStart(4, '0')}`).join(''),
  );
}

/** Whether a name from a file can neither be taken for anything else on its line, nor mean anything to a shell. */
export function isPlainName(name: string): boolean {
  return /^[\p{L}\p{N}._@/:][\p{L}\p{M}\p{N}._@/:-]*$/u.test(name);
}

/** Replaces what is not printed. */
const HIDDEN = '[hidden]';

/** What follows an option with such a name, or is the value of such a name, is a secret. */
const SECRET_NAME = /key|token|secret|passw|pwd|pass$|auth|bearer|cred|header|cookie|session|sig|code|user|env/i;
const SECRET_OPTION = /^-[eHupk]$/;
const TOKEN_START = /^(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[a-z]|npm|svc|eyJ|AKIA|AIza|ya29)(?=[-_A-Z0-9.])/;

/**
 * A server's entry in a form that may be printed on a terminal and pasted into a ticket: names, and only values that are plainly
 * not secret. If in doubt, a value is hidden. `plain`: words that are known not to be secret, such as the proxy's own files.
 */
export function printable(value: Readonly<Record<string, unknown>>, plain: ReadonlySet<string>): unknown {
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => {
      if (name === 'command') return [name, word(String(member), plain)];
      if (name === 'args' && Array.isArray(member)) return [name, words(member.map(String), plain)];
      if (name === 'type' && /^[a-z-]{1,20}$/i.test(String(member))) return [name, member];
      if (/^(?:url|serverUrl|httpUrl)$/.test(name)) return [name, printableAddress(String(member))];
      return [name, hidden(member, plain)];
    }),
  );
}

/** An address without what may be a credential: user, password, query, and parts of the path that look like one. */
export function printableAddress(text: string): string {
  if (!URL.canParse(text)) return HIDDEN;
  const { protocol, host, username, password, pathname, search, hash } = new URL(text);
  const path = pathname
    .split('/')
    .map((part) => (isTokenLike(part) ? HIDDEN : part))
    .join('/');
  const user = username || password ? `${HIDDEN}@` : '';
  return `${protocol}//${user}${host}${path}${search && `?${HIDDEN}`}${hash && `#${HIDDEN}`}`;
}

/** Whether the address may give access to anyone who reads it. */
export function holdsSecret(text: string): boolean {
  return printableAddress(text) !== new URL(text).href;
}

function words(args: readonly string[], plain: ReadonlySet<string>): string[] {
  let secret = false;
  return args.map((arg) => {
    const after = secret;
    secret = false;
    if (plain.has(arg)) return arg;
    const [, option, value] = /^(--?[\w-]+)=(.*)$/s.exec(arg) ?? [];
    if (option !== undefined) return `${option}=${SECRET_NAME.test(option) ? HIDDEN : word(value!, plain)}`;
    if (after) return HIDDEN;
    secret = arg.startsWith('-') && arg !== '--' && (SECRET_NAME.test(arg) || SECRET_OPTION.test(arg));
    return word(arg, plain);
  });
}

function word(text: string, plain: ReadonlySet<string>): string {
  if (plain.has(text) || text === '--') return text;
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(text)) return printableAddress(text);
  const isPath = /^(?:\.{0,2}|~|[A-Za-z]:)[\\/][\w.@ \\/+-]*$/.test(text);
  const isOption = /^--?[A-Za-z][A-Za-z-]{0,40}\d?$/.test(text);
  const isName = /^[a-z@][a-z./_:-]{0,80}\d?(?:@[\w.-]{1,20})?$/.test(text);
  const parts = text.split(/[\\/@:=]/);
  return (isPath || isOption || isName) && !parts.some(isTokenLike) ? text : HIDDEN;
}

/** Long words of letters and digits, and the prefixes that services give their keys. */
function isTokenLike(part: string): boolean {
  if (TOKEN_START.test(part)) return true;
  return /[\w~+=-]{16,}/.test(part) && /\d/.test(part) && /[A-Za-z]/.test(part);
}

function hidden(value: unknown, plain: ReadonlySet<string>): unknown {
  if (typeof value === 'string') return plain.has(value) ? value : HIDDEN;
  if (Array.isArray(value)) return value.map((one) => hidden(one, plain));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, hidden(one, plain)]));
}
