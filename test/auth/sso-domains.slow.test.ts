import { describe, expect, test } from 'vitest';
import { normalDomain, normalEmail } from '../../server/auth/sso/domains.ts';
import { createLog } from '../../server/lib/log.ts';
import { sql } from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { audited, verifyDomain } from '../helpers/sso.ts';

const DAY = 24 * 3600 * 1000;
const dns = useDns();
const server = useServer(dns.settings());

interface Domain {
  domain: string;
  verified: boolean;
  txt_name: string;
  txt_value: string;
  verified_at?: string;
  record_missing_since?: string;
  lost_at?: string;
}

const claim = async (tenant: TestTenant, domain: string) =>
  (await server.call<{ domain_records: Domain[] }>(201, 'POST /v1/settings/sso/domains', tenant.admin, { domain })).body
    .domain_records[0]!;
const list = async (tenant: TestTenant) =>
  (await server.call<{ domain_records: Domain[] }>(200, 'GET /v1/settings/sso/domains', tenant.admin)).body
    .domain_records;
const verify = (expected: number, tenant: TestTenant, domain: string) =>
  server.call<Domain & { code?: string; detail?: string }>(
    expected,
    `POST /v1/settings/sso/domains/${domain}/verify`,
    tenant.admin,
  );
/** The daily check, as the worker runs it. */
const recheck = () => server.core.domains.recheck(createLog('silent'), new AbortController().signal);

describe('one spelling of a domain', () => {
  test.each([
    ['example.com', 'example.com'],
    ['EXAMPLE.Com', 'example.com'],
    ['example.com.', 'example.com'],
    ['münchen.example', 'xn--mnchen-3ya.example'],
    ['MÜNCHEN.example', 'xn--mnchen-3ya.example'],
    ['xn--mnchen-3ya.example', 'xn--mnchen-3ya.example'],
    ['ｅｘａｍｐｌｅ.com', 'example.com'],
    ['example。com', 'example.com'],
    ['a-b.example.co.uk', 'a-b.example.co.uk'],
    ['1.example', '1.example'],
  ])('%j is %s', (given, domain) => {
    expect(normalDomain(given)).toBe(domain);
  });

  test.each([
    'com',
    'com.',
    'localhost',
    '',
    '.',
    '..',
    'example..com',
    '.example.com',
    '-a.example',
    'a-.example',
    'exa_mple.com',
    'exa mple.com',
    'example.com/path',
    'example.com?x',
    'example.com#x',
    'user@example.com',
    'https://example.com',
    'example.com:443',
    'ex%61mple.com',
    '127.0.0.1',
    '0x7f.1',
    '2130706433',
    '10.1',
    '[::1]',
    '::1',
    '*.example.com',
    `${'a'.repeat(64)}.example`,
    `${'a.'.repeat(126)}com`,
    'example.com\n',
    'example.com\0',
    'example\u200b.com\\',
  ])('%j is none', (given) => {
    expect(normalDomain(given)).toBeUndefined();
  });

  test('and of an address, in ASCII only', () => {
    expect(normalEmail('Ann.Lee+x@Example.COM')).toEqual({ email: 'ann.lee+x@example.com', domain: 'example.com' });
    expect(normalEmail('ann@münchen.example')).toEqual({
      email: 'ann@xn--mnchen-3ya.example',
      domain: 'xn--mnchen-3ya.example',
    });
    for (const wrong of [
      'ann',
      'ann@',
      '@example.com',
      'a@b@example.com',
      'ann @example.com',
      '"ann"@example.com',
      'ann@com',
      'ann@127.0.0.1',
      '\u212Aate@example.com',
      'änn@example.com',
      'ann@example.com\n',
      'ann,bob@example.com',
      `${'a'.repeat(65)}@example.com`,
      7,
      null,
    ]) {
      expect(normalEmail(wrong), String(wrong)).toBeUndefined();
    }
  });
});

describe('a claimed domain', () => {
  test('has a separate record for each tenant, the same however often it is claimed', async () => {
    const [a, b] = [await server.tenant(), await server.tenant()];
    const first = await claim(a, 'Claimed.Example.');
    expect(first).toMatchObject({
      domain: 'claimed.example',
      verified: false,
      txt_name: '_svc-verification.claimed.example',
    });
    expect(first.txt_value).toMatch(/^svc-domain-verification=[0-9A-Za-z]{32}$/);
    expect(await claim(a, 'claimed.example')).toEqual(first);
    expect((await claim(b, 'claimed.example')).txt_value).not.toBe(first.txt_value);
    expect(await list(a)).toEqual([first]);
    expect((await audited(server, a, '&action=sso.domain_claimed')).map((r) => r.code)).toEqual(['SSO010I']);
  });

  test('is one of a hundred at most', async () => {
    const tenant = await server.tenant();
    await sql(
      server,
      `insert into sso_domain (tenant_id, domain, token, created_at)
       select $1, n || '.many.example', 'x', now() from generate_series(1, 99) n`,
      [tenant.id],
    );
    await claim(tenant, 'last.example');
    const more = { domain: 'more.example' };
    expect((await server.call(409, 'POST /v1/settings/sso/domains', tenant.admin, more)).body.code).toBe('CONFLICT');
    await claim(tenant, 'last.example');
    expect(await list(tenant)).toHaveLength(100);
  });

  test('that is not a domain is refused with a message on the field', async () => {
    const { admin } = await server.tenant();
    for (const domain of ['com', '127.0.0.1', 'a b', 'user@example.com']) {
      const { body } = await server.call<{ errors: { pointer: string }[] }>(
        400,
        'POST /v1/settings/sso/domains',
        admin,
        { domain },
      );
      expect(body.errors[0]).toMatchObject({ pointer: '/domain' });
    }
  });

  test.each([
    ['nowhere.example', 'NXDOMAIN', 'DNS has no TXT record of this name'],
    ['empty.example', [], 'DNS has no TXT record of this name'],
    ['other.example', { txt: ['v=spf1 -all'] }, 'DNS returned 1 other value, "v=spf1 -all"'],
    ['failing.example', 'SERVFAIL', 'DNS could not answer'],
    ['refusing.example', 'REFUSED', 'DNS could not answer'],
  ] as const)('%s without its record: 422 names the record, and what DNS returned', async (domain, script, said) => {
    const tenant = await server.tenant();
    const record = await claim(tenant, domain);
    dns.names[record.txt_name] = script;
    const { body } = await verify(422, tenant, domain);
    expect(body.code).toBe('DOMAIN_NOT_VERIFIED');
    for (const part of [record.txt_name, record.txt_value, said]) expect(body.detail).toContain(part);
    expect((await list(tenant))[0]!.verified).toBe(false);
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO011E', target: { id: domain } });
  });

  test('is not verified by a value that is nearly right, or at another name', async () => {
    const tenant = await server.tenant();
    const record = await claim(tenant, 'nearly.example');
    const { txt_name, txt_value } = record;
    for (const txt of [
      txt_value.toLowerCase() === txt_value ? `${txt_value}x` : txt_value.toLowerCase(),
      ` ${txt_value}`,
      `${txt_value} `,
      `"${txt_value}"`,
      txt_value.slice(0, -1),
      `${txt_value}${txt_value}`,
      txt_value.split('=')[1]!,
    ]) {
      dns.names[txt_name] = { txt: [txt] };
      await verify(422, tenant, 'nearly.example');
    }
    dns.names[txt_name] = 'NXDOMAIN';
    dns.names['nearly.example'] = { txt: [txt_value] };
    await verify(422, tenant, 'nearly.example');
  });

  test('is verified by the record among others, also when DNS cuts it into strings or answers over TCP', async () => {
    const tenant = await server.tenant();
    const record = await claim(tenant, 'right.example');
    const cut = [record.txt_value.slice(0, 10), record.txt_value.slice(10)];
    dns.names[record.txt_name] = { txt: ['v=spf1 -all', 'x'.repeat(250), 'y'.repeat(250), cut] };
    const { body } = await verify(200, tenant, 'RIGHT.example.');
    expect(body).toMatchObject({ domain: 'right.example', verified: true });
    expect(await list(tenant)).toEqual([body]);
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO011I' });
    // again, which changes nothing
    expect((await verify(200, tenant, 'right.example')).body.verified_at).toBe(body.verified_at);
  });

  test('of another tenant, or of no one, is not found', async () => {
    const [a, b] = [await server.tenant(), await server.tenant()];
    await claim(a, 'mine.example');
    for (const domain of ['mine.example', 'none.example', 'not a domain', '%00']) {
      await verify(domain === '%00' ? 400 : 404, b, encodeURI(domain).replace('%2500', '%00'));
      if (domain !== '%00') {
        await server.call(404, `DELETE /v1/settings/sso/domains/${encodeURI(domain)}`, b.admin);
      }
    }
    expect(await list(b)).toEqual([]);
  });
});

describe('one organization', () => {
  test('has a verified domain; others get 409, whether they claim it or claimed it before', async () => {
    const [a, b, c] = [await server.tenant(), await server.tenant(), await server.tenant()];
    const early = await claim(b, 'one.example');
    await verifyDomain(server, dns, a.admin, 'one.example');
    dns.names[early.txt_name] = { txt: [early.txt_value] };
    expect((await verify(409, b, 'one.example')).body.code).toBe('CONFLICT');
    expect(
      (await server.call(409, 'POST /v1/settings/sso/domains', c.admin, { domain: 'One.Example' })).body.code,
    ).toBe('CONFLICT');
    for (const tenant of [b, c]) {
      expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO010E', severity: 'warning' });
    }
    expect(await server.core.domains.tenantOf('one.example')).toBe(a.id);
    // given up, it is free
    await server.call(204, 'DELETE /v1/settings/sso/domains/one.example', a.admin, { reason: 'it was sold' });
    expect((await audited(server, a))[0]).toMatchObject({ action: 'sso.domain_removed', reason: 'it was sold' });
    expect(await server.core.domains.tenantOf('one.example')).toBeUndefined();
    expect((await verify(200, b, 'one.example')).body.verified).toBe(true);
  });

  test('wins when many verify the same domain concurrently', async () => {
    const tenants = await Promise.all(Array.from({ length: 8 }, () => server.tenant()));
    const records = await Promise.all(tenants.map((tenant) => claim(tenant, 'race.example')));
    dns.names[records[0]!.txt_name] = { txt: records.map((record) => record.txt_value) };
    const answers = await Promise.all(
      tenants.map(async (tenant) => {
        const response = await fetch(`${server.url}/v1/settings/sso/domains/race.example/verify`, {
          method: 'POST',
          headers: { authorization: `Bearer ${tenant.admin.key}` },
        });
        return response.status;
      }),
    );
    expect(answers.sort()).toEqual([200, 409, 409, 409, 409, 409, 409, 409]);
    const states = await Promise.all(tenants.map(async (tenant) => (await list(tenant))[0]!.verified));
    expect(states.filter(Boolean)).toHaveLength(1);
  });

  test('is the only holder by database constraint', async () => {
    const [a, b] = [await server.tenant(), await server.tenant()];
    await verifyDomain(server, dns, a.admin, 'row.example');
    const insert = server.core.db.transaction(b.id, (em) =>
      em.execute(
        'insert into verified_domain (domain, tenant_id, verified_at, checked_at) values (?, ?, now(), now())',
        ['row.example', b.id],
      ),
    );
    await expect(insert).rejects.toThrow(/unique|duplicate/i);
    expect(await server.core.db.query(b.id, 'select * from verified_domain')).toEqual([]);
  });
});

describe('a verified domain whose record is gone', () => {
  test('keeps working, and is reported once; a DNS server that does not answer proves nothing', async () => {
    const tenant = await server.tenant();
    await verifyDomain(server, dns, tenant.admin, 'gone.example');
    const name = '_svc-verification.gone.example';
    const record = dns.names[name]!;
    const checks = () => dns.asked.filter((line) => line === `TXT ${name}`).length;
    const before = checks();
    await recheck();
    expect(checks()).toBe(before);
    server.clock.advance(DAY);
    dns.names[name] = 'SERVFAIL';
    await recheck();
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
    dns.names[name] = 'NXDOMAIN';
    await recheck();
    const since = (await list(tenant))[0]!;
    expect(since).toMatchObject({ verified: true, record_missing_since: expect.any(String) });
    server.clock.advance(DAY);
    await recheck();
    expect((await list(tenant))[0]!.record_missing_since).toBe(since.record_missing_since);
    expect((await audited(server, tenant, '&action=sso.domain_record_missing')).map((r) => r.code)).toEqual([
      'SSO013E',
    ]);
    dns.names[name] = record;
    server.clock.advance(DAY);
    await recheck();
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO013I', actor: { type: 'system' } });
  });

  test('counts as such when no name server has answered for a week', async () => {
    const tenant = await server.tenant();
    await verifyDomain(server, dns, tenant.admin, 'dead.example');
    const name = '_svc-verification.dead.example';
    const record = dns.names[name]!;
    dns.names[name] = 'SERVFAIL';
    for (let day = 1; day < 7; day++) {
      server.clock.advance(DAY);
      await recheck();
    }
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
    server.clock.advance(DAY);
    await recheck();
    expect((await list(tenant))[0]).toMatchObject({ verified: true, record_missing_since: expect.any(String) });
    expect((await audited(server, tenant))[0]).toMatchObject({
      ...{ code: 'SSO013E', detail: 'no name server has answered for a week' },
    });
    dns.names[name] = record;
    server.clock.advance(DAY);
    await recheck();
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
  });

  test('does not count as such because this program did not look for a week', async () => {
    const tenant = await server.tenant();
    await verifyDomain(server, dns, tenant.admin, 'asleep.example');
    const name = '_svc-verification.asleep.example';
    const record = dns.names[name]!;
    const failing = async (days: number) => {
      server.clock.advance(days * DAY);
      dns.names[name] = 'SERVFAIL';
      await recheck();
    };
    await failing(1);
    for (let day = 0; day < 6; day++) await failing(day === 0 ? 10 : 1);
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
    dns.names[name] = record;
    server.clock.advance(DAY);
    await recheck();
    await failing(10);
    expect((await list(tenant))[0]).not.toHaveProperty('record_missing_since');
  });

  test('leaves others their turn while its name server does not answer', async () => {
    const [stuck, due] = [await server.tenant(), await server.tenant()];
    await verifyDomain(server, dns, stuck.admin, 'stuck.example');
    await verifyDomain(server, dns, due.admin, 'due.example');
    dns.names['_svc-verification.stuck.example'] = 'SERVFAIL';
    const at = (days: number) => new Date(server.clock.now() - days * DAY);
    await sql(
      server,
      `update verified_domain set checked_at = case domain when 'stuck.example' then $1::timestamptz
         when 'due.example' then $2 else $3 end`,
      [at(3), at(2), at(0)],
    );
    const checked = async () => (await list(due))[0]! as Domain & { checked_at: string };
    const before = (await checked()).checked_at;
    const one = () => server.core.domains.recheck(createLog('silent'), new AbortController().signal, 1);
    await one();
    expect((await checked()).checked_at).toBe(before);
    await one();
    expect((await checked()).checked_at).not.toBe(before);
  });

  test('can be taken over after a week by another tenant that proves control of it, and not before', async () => {
    const [old, heir] = [await server.tenant(), await server.tenant()];
    await verifyDomain(server, dns, old.admin, 'sold.example');
    const mine = await claim(heir, 'sold.example').catch(() => undefined);
    expect(mine).toBeUndefined();
    dns.names['_svc-verification.sold.example'] = 'NXDOMAIN';
    server.clock.advance(DAY);
    await recheck();
    server.clock.advance(6 * DAY);
    await server.call(409, 'POST /v1/settings/sso/domains', heir.admin, { domain: 'sold.example' });
    server.clock.advance(DAY);
    const record = await claim(heir, 'sold.example');
    // claiming takes nothing
    expect(await server.core.domains.tenantOf('sold.example')).toBe(old.id);
    await verify(422, heir, 'sold.example');
    expect(await server.core.domains.tenantOf('sold.example')).toBe(old.id);
    dns.names[record.txt_name] = { txt: [record.txt_value] };
    expect((await verify(200, heir, 'sold.example')).body.verified).toBe(true);
    expect(await server.core.domains.tenantOf('sold.example')).toBe(heir.id);
    expect((await list(old))[0]).toMatchObject({ verified: false });
    expect((await audited(server, old))[0]).toMatchObject({ code: 'SSO014E', severity: 'critical' });
    expect(await sql(server, 'select * from verified_domain where domain = $1', ['sold.example'])).toHaveLength(1);
    expect((await list(old))[0]).toMatchObject({ lost_at: expect.any(String) });
    // bought back
    await server.call(204, 'DELETE /v1/settings/sso/domains/sold.example', heir.admin);
    const [again] = await list(old);
    dns.names[again!.txt_name] = { txt: [again!.txt_value] };
    expect((await verify(200, old, 'sold.example')).body).not.toHaveProperty('lost_at');
  });

  test('is kept by the tenant that published it again before another one proved control', async () => {
    const [old, heir] = [await server.tenant(), await server.tenant()];
    await verifyDomain(server, dns, old.admin, 'both.example');
    const name = '_svc-verification.both.example';
    const [kept] = await list(old);
    dns.names[name] = 'NXDOMAIN';
    server.clock.advance(DAY);
    await recheck();
    server.clock.advance(7 * DAY);
    const record = await claim(heir, 'both.example');
    // the next daily check has not come yet
    dns.names[name] = { txt: [record.txt_value, kept!.txt_value] };
    expect((await verify(409, heir, 'both.example')).body.code).toBe('CONFLICT');
    expect(await server.core.domains.tenantOf('both.example')).toBe(old.id);
    expect((await list(old))[0]).not.toHaveProperty('record_missing_since');
    expect((await audited(server, old))[0]).toMatchObject({ code: 'SSO013I' });
    dns.names[name] = { txt: [record.txt_value] };
    await verify(409, heir, 'both.example');
  });
});
