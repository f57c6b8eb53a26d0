import { MASKED } from '../../../server/policy/evaluation/masks.ts';

/** A contradiction between the value stated for an action and its arguments. */
export interface Doubt {
  /** Where the arguments say something else, such as `$.payment.amount`. */
  path: string;
  /** What they say there, verbatim. */
  says: string;
}

interface Claimed {
  estimated_value: number | null;
  value_currency: string | null;
  arguments_preview?: unknown;
}

const MONEY = new Set(['amount', 'amounts', 'total', 'sum', 'price', 'cost', 'value', 'payment', 'refund']);
/** Arguments may be deep and long; a person reads only so many contradictions. */
const MOST = 3;

/**
 * Finds where the arguments contradict the value stated for the action. The stated value must be one of the amounts in the
 * arguments, and no amount may be higher, so that a small amount next to a large one does not hide it. Arguments without amounts
 * contradict nothing.
 */
export function doubtsOf({ estimated_value, value_currency, arguments_preview }: Claimed): Doubt[] {
  const amounts: (Doubt & { amount: number })[] = [];
  const currencies: (Doubt & { code: string })[] = [];
  const visit = (value: unknown, path: string, name: string) => {
    if (typeof value === 'object' && value !== null) {
      for (const [key, member] of Object.entries(value)) {
        const own = Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`;
        visit(member, own, Array.isArray(value) ? name : key);
      }
      return;
    }
    const words = name
      .replace(/([a-z])([A-Z])/g, '$1_$2')
      .toLowerCase()
      .split(/[^a-z]+/);
    if (typeof value === 'string' && words.includes('currency')) {
      if (value !== MASKED) currencies.push({ path, says: value, code: value.trim().toUpperCase() });
    } else if (words.some((word) => MONEY.has(word))) {
      const amount = amountIn(value);
      if (amount !== undefined) amounts.push({ path, says: String(value), amount });
    }
  };
  visit(arguments_preview, '$', '');
  const found: Doubt[] = [];
  if (estimated_value !== null && amounts.length > 0) {
    const stated = amounts.some(({ amount }) => amount === estimated_value);
    found.push(...amounts.filter(({ amount }) => amount > estimated_value || !stated));
  }
  if (value_currency !== null) {
    const code = value_currency.trim().toUpperCase();
    found.push(...currencies.filter((one) => one.code !== code));
  }
  return found.slice(0, MOST).map(({ path, says }) => ({ path, says }));
}

/** The amount in an argument's value: a number, or a text such as `1,200.50` or `EUR 12`. */
function amountIn(value: unknown): number | undefined {
  if (typeof value === 'number') return Math.abs(value);
  if (typeof value !== 'string' || value.trim() === '') return undefined;
  if (/^\d+(e\d+|x[\da-f]+)$/i.test(value.trim())) return Number(value);
  const match = /^\D{0,4}?(\d[\d.,' ]*)\D{0,4}$/.exec(value.trim());
  if (!match) return undefined;
  const digits = match[1]!.replace(/[' ]/g, '');
  // the last separator is the decimal one, unless it precedes three digits like a thousands separator
  const at = Math.max(digits.lastIndexOf('.'), digits.lastIndexOf(','));
  const both = digits.includes('.') && digits.includes(',');
  const decimals = at >= 0 && (both || digits.length - at - 1 !== 3 || digits[at] === '.');
  const plain = decimals
    ? `${digits.slice(0, at).replace(/[.,]/g, '')}.${digits.slice(at + 1)}`
    : digits.replace(/[.,]/g, '');
  const amount = Number(plain);
  return Number.isFinite(amount) ? amount : undefined;
}
