import { describe, expect, it } from 'vitest';
import { CedarHost, EngineError, newCedar } from '../../server/policy/language/host.ts';
import { SIEGE } from '../siege/rounds.ts';

const PERMIT_ALL = { p: 'permit(principal, action, resource);' };

/** A call in the form that the engine takes without a schema. */
function call(agent: string) {
  return {
    principal: { type: 'Agent', id: agent },
    action: { type: 'Action', id: 'payment' },
    resource: { type: 'Tool', id: 't' },
    context: {},
    entities: [],
  };
}

describe('the engine host', () => {
  // a new instance after each throw is what costs: `npm test` shows that there is one, and the siege how many there may be
  const throws = SIEGE ? 1200 : 15;

  it(`survives ${throws} throws, 1200 of which end a bare instance`, () => {
    const bare = newCedar();
    const host = new CedarHost();
    const set = {};
    let bareDied = false;
    for (let n = 0; n < 1200; n++) {
      if (n < throws) {
        const lone = { ...call('\uD83D'), policies: { staticPolicies: PERMIT_ALL } };
        expect(() => host.call('isAuthorized', lone)).toThrow(EngineError);
      }
      try {
        bare.isAuthorized({ ...call('\uD83D'), policies: { staticPolicies: PERMIT_ALL } });
      } catch {
        // every one of these leaks some of the instance's stack
      }
    }
    try {
      bare.isAuthorized({ ...call('a'), policies: { staticPolicies: PERMIT_ALL } });
    } catch {
      bareDied = true;
    }
    expect(bareDied, 'the leak that the host works around is gone: its replacing may be, too').toBe(true);

    const id = host.prepareSet(set, () => PERMIT_ALL);
    const answer = host.call('statefulIsAuthorized', { ...call('a'), preparsedPolicySetId: id });
    expect(answer).toMatchObject({ type: 'success', response: { decision: 'allow' } });
    expect(host.replaced).toBe(throws);
  });

  it('recovers after a stack overflow, which breaks an instance immediately', () => {
    const host = new CedarHost();
    const deep = `permit(principal, action, resource) when { ${'('.repeat(5_000)}true${')'.repeat(5_000)} };`;
    expect(() => host.call('checkParsePolicySet', { staticPolicies: deep })).toThrow(EngineError);
    expect(host.call('checkParsePolicySet', { staticPolicies: PERMIT_ALL })).toEqual({ type: 'success' });
  });

  it('prepares a set again after a replacement, when it is next asked for', () => {
    const host = new CedarHost();
    const set = {};
    let prepared = 0;
    const statements = () => {
      prepared++;
      return PERMIT_ALL;
    };
    host.prepareSet(set, statements);
    host.prepareSet(set, statements);
    expect(prepared).toBe(1);
    expect(() => host.call('checkParsePolicySet', { staticPolicies: '\uDC00' })).toThrow(EngineError);
    const id = host.prepareSet(set, statements);
    expect(prepared).toBe(2);
    const answer = host.call('statefulIsAuthorized', { ...call('a'), preparsedPolicySetId: id });
    expect(answer).toMatchObject({ response: { decision: 'allow' } });
  });

  it('keeps its memory flat over 10,000 preparations of new sets', () => {
    const host = new CedarHost({ sets: 64, statements: 200 });
    const prepare = (n: number) =>
      host.prepareSet({}, () => ({ [`p${n}`]: `permit(principal == Agent::"a${n}", action, resource);` }));
    for (let n = 0; n < 500; n++) prepare(n);
    const warm = host.memoryBytes;
    for (let n = 500; n < 10_000; n++) prepare(n);
    expect(host.memoryBytes - warm).toBeLessThan(1024 * 1024);
    expect(host.replaced).toBe(0);
  });

  it('evicts the least recently used set, and no other', () => {
    const host = new CedarHost({ sets: 2 });
    const [a, b, c] = [{}, {}, {}];
    let prepared = 0;
    const use = (key: object) => host.prepareSet(key, () => ({ [`p${prepared++}`]: PERMIT_ALL.p }));
    use(a);
    use(b);
    use(a);
    use(c);
    expect(prepared).toBe(3);
    use(a);
    expect(prepared).toBe(3);
    use(b);
    expect(prepared).toBe(4);
  });

  it('replaces an instance that has grown too large', () => {
    const host = new CedarHost({ memoryBytes: 1 });
    host.prepareSet({}, () => PERMIT_ALL);
    host.prepareSet({}, () => PERMIT_ALL);
    expect(host.replaced).toBe(2);
  });

  it('refuses a set or a schema that does not parse, and keeps the slot free', () => {
    const host = new CedarHost({ sets: 1, schemas: 1 });
    for (let n = 0; n < 3; n++) {
      expect(() => host.prepareSet({}, () => ({ p: 'permit(' }))).toThrow(EngineError);
      expect(() => host.prepareSchema('entity')).toThrow(EngineError);
    }
    expect(host.prepareSet({}, () => PERMIT_ALL)).toBe('set0');
    expect(host.prepareSchema('entity Agent;')).toBe('schema0');
    expect(host.prepareSchema('entity Tool;')).toBe('schema0');
    expect(host.replaced).toBe(0);
  });
});
