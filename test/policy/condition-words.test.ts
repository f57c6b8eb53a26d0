import { policySetTextToParts, policyToJson } from '@cedar-policy/cedar-wasm/nodejs';
import { expect, test } from 'vitest';
import { conditionWords } from '../../server/policy/language/condition-words.ts';
import { TEMPLATES } from '../../web/parts/policy-templates.ts';

function words(condition: string): string | undefined {
  const answer = policyToJson(`permit(principal, action, resource) when { ${condition} };`);
  if (answer.type !== 'success') throw new Error(answer.errors.map(({ message }) => message).join());
  return conditionWords(answer.json.conditions[0]!.body);
}

test.each([
  [
    'context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0"))',
    'amount is at most 50',
  ],
  ['context.num.hasTag("amount")', 'amount is a number'],
  ['!context.num.hasTag("amount")', 'not (amount is a number)'],
  // where it says less than the comparison, the check stays
  [
    'context.num.hasTag("a") && !(context.num.getTag("a").lessThan(decimal("5.25")))',
    'a is a number and not (a is less than 5.25)',
  ],
  [
    'context.num.hasTag("a") && (context.num.getTag("a").lessThan(decimal("5.0")) || context has host)',
    'a is a number and (a is less than 5 or the host is known)',
  ],
  ['context.str.hasTag("c") && context.str.getTag("c") != "x"', 'c is a text and c is not "x"'],
  ['context has amount && context.amount.greaterThan(decimal("10.0"))', 'the stated value is more than 10'],
  ['context has currency && context.currency == "EUR"', 'the currency is "EUR"'],
  ['context.risk_score.greaterThanOrEqual(decimal("0.7"))', 'the risk is at least 0.7'],
  ['context.str.hasTag("to") && ["a", "b"].contains(context.str.getTag("to"))', 'to is one of "a", "b"'],
  ['context.list.hasTag("tags") && context.list.getTag("tags").containsAny(["x"])', 'tags contains any of "x"'],
  [
    'principal.labels.contains("senior") && resource.labels.containsAll(["a", "b"])',
    'the agent is labeled "senior" and the tool is labeled all of "a", "b"',
  ],
  [
    'resource has labels && resource.labels.contains("money") && resource has server && resource.server has trust && resource.server.trust >= 50',
    'the tool is labeled "money" and the trust of the tool’s server is at least 50',
  ],
  ['!(principal has labels)', 'not (the agent has labels)'],
  ['resource == Tool::"search"', 'the tool is "search"'],
  ['context.facts.hasTag("to matches ^a+$")', 'to matches "^a+$"'],
  ['context.facts.hasTag("to in known")', 'to is in the list known'],
  ['context.facts.hasTag("to any in blocked")', 'any of to is in the list blocked'],
  ['context.session.called.hasTag("look")', 'look was called before in the session'],
  ['context.session.call_count < 5', 'the number of earlier calls in the session is less than 5'],
  [
    'context.session.num.hasTag("left") && context.session.num.getTag("left") == decimal("1.0")',
    'left of the session is 1',
  ],
  ['resource in ToolServer::"shop"', 'the tool is on the server "shop"'],
  [
    'principal in AgentRole::"clerk" || action in Action::"read"',
    'the agent has the role "clerk" or the action is "read" or of that kind',
  ],
  ['context.now.toTime() < duration("9h")', 'the time of day is less than 9h'],
  [
    'context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8"))',
    'the address of the caller is in 10.0.0.0/8',
  ],
  ['context.str.hasTag("p") && context.str.getTag("p") like "a*"', 'p is like "a*"'],
  ['context has host && context.host like "*.test"', 'the host is like "*.test"'],
  ['context.bool.hasTag("u") && context.bool.getTag("u")', 'u is true or false and u is true'],
])('%s', (condition, said) => {
  expect(words(condition)).toBe(said);
});

test('each condition of the templates has words', () => {
  const conditions = TEMPLATES.flatMap(({ source }) => {
    const answer = policySetTextToParts(source);
    if (answer.type !== 'success') throw new Error('a template does not parse');
    return answer.policies.flatMap((text) => {
      const parsed = policyToJson(text);
      return parsed.type === 'success' ? parsed.json.conditions : [];
    });
  });
  const said = conditions.map(({ body }) => conditionWords(body));
  expect(conditions.length).toBeGreaterThan(15);
  for (const words of said) expect(words).toMatch(/^(?!.*(undefined|object Object))./);
});

test.each(['if context has host then true else false', 'context == {a: 1}', 'context.num == context.num'])(
  'what has no words stands for itself: %s',
  (condition) => {
    expect(words(condition)).toBeUndefined();
  },
);

test('names and texts of others stay within quotes, and nothing of them is invisible', () => {
  expect(words('context.str.hasTag("a\\" and b") && context.str.getTag("a\\" and b") == "x\\u{202e}y"')).toBe(
    '"a\\" and b" is "x⟦U+202E⟧y"',
  );
});
