import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type Access,
  hasRole,
  type Principal,
  personOf,
  ROLES,
  type Role,
  refusal,
  SCOPES,
  type Scope,
} from '../../server/domain/principal.ts';
import { newSecret, readSecret, SECRET_KINDS, secretPrefix } from '../../server/domain/secret.ts';
import { TENANT_ID } from '../../server/domain/tenant-id.ts';

const key = (...scopes: Scope[]): Principal => ({ kind: 'api_key', tenantId: 't', id: 'k', scopes, ownerId: 'owner' });
const person = (...roles: Role[]): Principal => ({
  kind: 'session',
  tenantId: 't',
  id: 's',
  userId: 'user',
  email: 'e',
  name: 'n',
  avatarUrl: null,
  roles,
  authMethod: 'magic_link',
});
const agent: Principal = { kind: 'agent_key', tenantId: 't', id: 'a', agentId: 'a', agentRole: 'r', ownerId: null };

describe('an access rule', () => {
  test('that omits a kind of credential admits no one of that kind', () => {
    for (const principal of [key(...SCOPES), person(...ROLES), agent]) expect(refusal({}, principal)).toBeDefined();
    expect(refusal({ role: 'viewer', agent: true }, key('admin'))?.code).toBe('KEY_SCOPE');
    expect(refusal({ keys: ['proxy'], agent: true }, person('admin'))?.code).toBe('FORBIDDEN');
    expect(refusal({ keys: ['proxy'], role: 'viewer' }, agent)?.code).toBe('KEY_SCOPE');
  });

  test('names the accepted credentials if the kind is wrong', () => {
    expect(refusal({ agent: true }, key('admin'))?.detail).toBe('this route takes an agent key');
    expect(refusal({ role: 'approver' }, agent)?.detail).toBe(
      'this route takes a signed-in person with the role approver',
    );
    expect(refusal({ keys: ['proxy'], agent: true }, person('admin'))?.detail).toBe(
      'this route takes an agent key, or an API key with the scope proxy or admin',
    );
    expect(refusal({ role: 'any' }, key('admin'))?.detail).toBe('this route takes a signed-in person');
  });

  test('admits higher roles wherever it admits lower ones, and the scope admin wherever it admits a scope', () => {
    const access = fc.record({
      keys: fc.option(fc.subarray(['proxy', 'pipeline', 'stop'] as const), { nil: undefined }),
      role: fc.option(fc.constantFrom(...ROLES), { nil: undefined }),
    });
    fc.assert(
      fc.property(access, fc.subarray([...SCOPES]), fc.subarray([...ROLES]), ({ keys, role }, scopes, roles) => {
        const rule: Access = { ...(keys && { keys }), ...(role && { role }) };
        const passes = (principal: Principal) => refusal(rule, principal) === undefined;
        expect(passes(key(...scopes))).toBe(
          keys !== undefined && scopes.some((scope) => scope === 'admin' || keys.includes(scope)),
        );
        expect(passes(person(...roles))).toBe(
          role !== undefined && roles.some((one) => ROLES.indexOf(one) >= ROLES.indexOf(role)),
        );
        expect(refusal(rule, null)?.code).toBe('UNAUTHENTICATED');
      }),
    );
    expect(refusal({ public: true }, null)).toBeUndefined();
    expect(refusal({ role: 'any' }, person())).toBeUndefined();
    for (const other of [null, key('admin'), agent]) expect(refusal({ role: 'any' }, other)).toBeDefined();
    expect(hasRole([], 'viewer')).toBe(false);
  });

  test('means the same person, whichever of their credentials is used', () => {
    expect(personOf(person())).toBe('user');
    expect(personOf(key())).toBe('owner');
    expect(personOf(agent)).toBe('a');
  });
});

describe('a secret', () => {
  test('is recognized by its form and checksum: no change of one character passes', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...SECRET_KINDS),
        fc.stringMatching(new RegExp(`^${TENANT_ID}$`)),
        fc.nat(),
        fc.constantFrom(...'09AZaz_-. '),
        (kind, tenantId, place, character) => {
          const secret = newSecret(kind, tenantId);
          expect(readSecret(secret)).toEqual({ kind, tenantId });
          expect(secret.startsWith(secretPrefix(secret))).toBe(true);
          expect(secretPrefix(secret)).toHaveLength(`svc_${kind}_${tenantId}_`.length + 4);
          const at = place % secret.length;
          const other = secret.slice(0, at) + character + secret.slice(at + 1);
          if (other !== secret) expect(readSecret(other)).toBeUndefined();
        },
      ),
      { numRuns: 500 },
    );
    const one = newSecret('key', 't');
    for (const text of ['', 'svc_key_', 'svc_key_t_', `${one}\n`, ` ${one}`, `${one}${one}`, one.replace('_t_', '__')])
      expect(readSecret(text)).toBeUndefined();
    for (const tenantId of ['', '_a', 'a b', 'a.b', 'x'.repeat(65)])
      expect(() => newSecret('key', tenantId)).toThrow(RangeError);
  });
});
