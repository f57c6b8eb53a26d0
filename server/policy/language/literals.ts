import { isIP } from 'node:net';
import { quoted } from '../../lib/visible.ts';
import { CURRENCY, httpPath, isMethod, isPlainPath, location, pathFault, readsAlike } from './resource.ts';
import { literal, type Token } from './scan.ts';

type Expr = Readonly<Record<string, unknown>>;

/** An attribute of the context whose values are normalized before rules see them. */
interface Normal {
  /** What its values are like, for people. */
  form: string;
  /** Whether a request can have this value. */
  isNormal(text: string): boolean;
  /** The value that a person may have meant. */
  normal(text: string): string | undefined;
  /** Whether a value can have this text between its wildcards; `first`, `last`: at its beginning, at its end. */
  hasPart(text: string, first: boolean, last: boolean, whole: string): boolean;
}

const hostOf = (url: string) => location(url, false)?.host;

const NORMAL: Readonly<Record<string, Normal>> = {
  host: {
    form: 'hosts are in lower case and ASCII, without port and trailing dot, IPv6 in brackets',
    isNormal: (text) => text === '' || hostOf(`https://${text}/`) === text || hostOf(`x://${text}/`) === text,
    normal: (text) =>
      hostOf(text.includes('://') ? text : isIP(text) === 6 ? `https://[${text}]/` : `https://${text}/`),
    hasPart: (text, _first, last, whole) =>
      /^[a-z\d._[\]:-]*$/.test(text) && (whole.includes('[') || !text.includes(':')) && !(last && text.endsWith('.')),
  },
  method: {
    form: 'methods are in upper case',
    isNormal: (text) => isMethod(text) && text === text.toUpperCase(),
    normal: (text) => text.toUpperCase(),
    hasPart: (text) => (text === '' || isMethod(text)) && text === text.toUpperCase(),
  },
  currency: {
    form: 'currencies are three capital letters',
    isNormal: (text) => CURRENCY.test(text),
    normal: (text) => text.trim().toUpperCase(),
    hasPart: (text) => /^[A-Z]{0,3}$/.test(text),
  },
  path: {
    form: 'paths begin with / and have no dot segments, no query and no needless escapes',
    isNormal: (text) =>
      text === '' ||
      (text.startsWith('/') && !text.includes('?') && pathFault(text) === undefined && httpPath(text) === text) ||
      isPlainPath(text) ||
      (!text.startsWith('/') && readsAlike(text, false) && location(text, false)?.path === text),
    normal: (text) => httpPath(text),
    hasPart: (text, first) =>
      !/\/\/|\/\.{1,2}\/|[?#\\;]/.test(text) &&
      httpPath(text) === text &&
      (!first || text === '' || text.startsWith('/') || /^[A-Za-z][A-Za-z\d+-]*:(?!\/\/)/.test(text)),
  },
};

/** Literals that conditions compare with an attribute that no request can have: such a rule only looks as if it applied. */
export function foreignLiterals(conditions: readonly { body: unknown }[], statement: Token[]) {
  const found: { start: number; message: string }[] = [];
  const add = (text: string, start: number | undefined, { form, isNormal, normal }: Normal, meant = normal(text)) => {
    const mend = meant !== undefined && meant !== '' && meant !== text && isNormal(meant);
    const message = `${form}, and never ${quoted(text)}${mend ? `; did you mean ${quoted(meant)}?` : ''}`;
    found.push({ start: start ?? statement[0]!.start, message });
  };
  const compared = (attribute: Normal, value: unknown) => {
    const text = (value as { Value?: unknown } | undefined)?.Value;
    if (typeof text !== 'string' || attribute.isNormal(text)) return;
    add(text, statement.find((token) => literal(token.text) === text)?.start, attribute);
  };
  const visit = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    for (const [op, value] of Object.entries(node)) {
      const { left, right, pattern } = Object(value) as { left?: Expr; right?: Expr; pattern?: unknown };
      if (op === '==' || op === '!=') {
        const [one, other] = [attributeOf(left), attributeOf(right)];
        if (one) compared(one, right);
        if (other) compared(other, left);
      } else if (op === 'contains') {
        const attribute = attributeOf(right);
        const items = (left as { Set?: unknown } | undefined)?.Set;
        if (attribute && Array.isArray(items)) for (const item of items) compared(attribute, item);
      } else if (op === 'like') {
        const attribute = attributeOf(left);
        const parts = attribute && partsOf(pattern);
        const fits = parts?.every((part, n) =>
          attribute!.hasPart(part, n === 0, n === parts.length - 1, parts.join('*')),
        );
        if (attribute && parts && fits === false) {
          const text = parts.join('*');
          const token = statement.find(
            (_, n) => statement[n - 1]?.text === 'like' && statement[n]?.text === `"${text}"`,
          );
          const meant = { host: text.toLowerCase(), method: text.toUpperCase(), currency: text.toUpperCase() }[
            nameOf(left) as string
          ];
          const isMended = meant
            ?.split('*')
            .every((part, n, all) => attribute.hasPart(part, n === 0, n === all.length - 1, meant));
          add(text, token?.start, { ...attribute, isNormal: () => isMended === true }, meant ?? '');
        }
      }
      visit(value);
    }
  };
  for (const { body } of conditions) visit(body);
  return found;
}

/** The name of an attribute of the context. */
function nameOf(expr: unknown): string | undefined {
  const { left, attr } = Object((expr as Expr | undefined)?.['.']) as { left?: Expr; attr?: unknown };
  return left?.Var === 'context' && typeof attr === 'string' ? attr : undefined;
}

function attributeOf(expr: unknown): Normal | undefined {
  const name = nameOf(expr);
  return name !== undefined && Object.hasOwn(NORMAL, name) ? NORMAL[name] : undefined;
}

/** The texts between the wildcards of a pattern. */
function partsOf(pattern: unknown): string[] | undefined {
  if (!Array.isArray(pattern)) return undefined;
  const parts = [''];
  for (const one of pattern as (string | { Literal: string })[]) {
    if (typeof one === 'string') parts.push('');
    else parts.push(`${parts.pop()}${one.Literal}`);
  }
  return parts;
}
