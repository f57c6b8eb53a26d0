import type { ActionRequest } from '../domain/policy.ts';
import { displayPath, isAmbiguous, pathRead } from '../policy/evaluation/ambiguity.ts';
import { exactDecimal } from '../policy/evaluation/exact.ts';
import { type Arguments, flatten, RequestError } from '../policy/evaluation/request.ts';
import type { ValueRule } from './config.ts';

/** The largest value that a hold may have. */
const MOST_VALUE = 1e14;

/**
 * The value of the action, from its arguments under the keys that policies see; nothing if they have none. A value that is
 * present but cannot be read as an amount or a currency is in doubt: it must not get around a rule on `context.amount`.
 */
export function actionValue(
  args: unknown,
  rule: ValueRule,
): Pick<ActionRequest, 'estimated_value' | 'value_currency'> & { doubt?: string } {
  const { from, currency_from } = rule;
  let flat: Arguments;
  try {
    flat = flatten(args, undefined);
  } catch (error) {
    if (error instanceof RequestError) return { doubt: displayPath(from) };
    throw error;
  }
  if (isAmbiguous(flat, pathRead(from, ['num']))) return { doubt: displayPath(from) };
  const number = flat.num.get(from);
  if (number === undefined) return {};
  const amount = Number(number) / rule.divide_by;
  // with more digits than a floating-point number holds, what is left could be below a limit
  if (exactDecimal(Number(number)) !== number) return { doubt: displayPath(from) };
  if (!(amount >= 0 && amount <= MOST_VALUE)) return { doubt: displayPath(from) };
  if (currency_from !== undefined && isAmbiguous(flat, pathRead(currency_from, ['str']))) {
    return { doubt: displayPath(currency_from) };
  }
  const currency = currency_from === undefined ? rule.currency : flat.str.get(currency_from);
  if (currency_from !== undefined && currency !== undefined && currency.length > 10) {
    return { doubt: displayPath(currency_from) };
  }
  return { estimated_value: amount, ...(currency !== undefined && { value_currency: currency }) };
}
