import { beforeAll, describe, expect, test } from 'vitest';
import { deploy, event, makeWorld, type World } from '../helpers/api.ts';
import { corpus } from '../helpers/data.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { sampled } from '../siege/rounds.ts';

const server = useServer();
const strings = corpus<string[]>('naughty-strings.json');
/** What the corpus does not have and a store may break: ends of lines, controls, twins, marks of direction. */
const more = [
  'a\u0000b',
  '\ud800',
  '\u0001\u001f',
  'é',
  'e\u0301',
  '\u202eabc',
  '\ufeffx',
  'x'.repeat(200),
  '\\u0000',
  '"\\',
  "');--",
];

describe.skipIf(!strings)('strings that break programs', () => {
  const all = [...sampled(strings ?? [], undefined, 5), ...more];
  /** For what stores a string as the other routes do. */
  const some = sampled(all, undefined, 3);
  const holdable = (text: string) => text.isWellFormed() && !text.includes('\0');
  let world: World;
  beforeAll(async () => {
    world = await makeWorld(server);
    await deploy(server, world.tenant.admin, 'all', 'permit(principal, action, resource);');
  });

  /** Sends every string through a route; the answer of each that was taken goes to `check`. Refusals must be plain. */
  async function each(
    line: string,
    who: Credential,
    body: (text: string) => Record<string, unknown>,
    taken: (text: string, answer: Record<string, unknown>) => void = () => undefined,
    texts = all,
  ) {
    const [method, path] = line.split(' ') as [string, string];
    let count = 0;
    const one = async (text: string) => {
      const response = await fetch(server.url + path, {
        method,
        headers: {
          'content-type': 'application/json',
          ...(who.key && { authorization: `Bearer ${who.key}` }),
          ...(who.cookie && { cookie: who.cookie, origin: server.origin }),
          ...who.headers,
        },
        body: JSON.stringify(body(text)),
      });
      const answer = (await response.json()) as Record<string, unknown>;
      const said = `${line} with ${JSON.stringify(text).slice(0, 80)}: ${response.status} ${JSON.stringify(answer).slice(0, 200)}`;
      expect(response.status, said).toBeLessThan(500);
      if (response.status < 300) {
        count++;
        expect(holdable(text), said).toBe(true);
        taken(text, answer);
      } else {
        expect(answer.code, said).toBe('VALIDATION_FAILED');
        // only what is empty, too long, or not text is refused
        expect(text === '' || text.length > 60 || !holdable(text), said).toBe(true);
      }
    };
    for (let i = 0; i < texts.length; i += 16) await Promise.all(texts.slice(i, i + 16).map(one));
    expect(count).toBeGreaterThan(texts.length * 0.7);
  }

  test('are labels of keys, as they were sent', async () => {
    const { adminKey } = world.credential;
    const labels = new Set<string>();
    await each(
      'POST /v1/agent-keys',
      adminKey,
      (text) => ({ agent_id: 'agent', agent_role: 'role', label: text }),
      (text, answer) => {
        labels.add(text);
        expect(answer).toMatchObject({ label: text });
      },
      some,
    );
    const { body } = await server.call<{ agent_keys: { label: string }[] }>(200, 'GET /v1/agent-keys', adminKey);
    const listed = new Set(body.agent_keys.map((key) => key.label));
    expect([...labels].filter((text) => !listed.has(text))).toEqual([]);
  });

  test('are groups in the settings, as they were sent', async () => {
    const { adminKey, admin } = world.credential;
    const fits = all.filter((text) => text !== '' && text.length <= 64 && holdable(text) && text !== '__proto__');
    const approver_groups = Object.fromEntries(fits.map((text) => [text, [world.user]]));
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups, reason: 'new groups' });
    const { body } = await server.call(200, 'GET /v1/settings', adminKey);
    expect(body.approver_groups).toEqual(approver_groups);
    await server.call(200, 'PATCH /v1/settings', admin, { approver_groups: null, reason: 'none left' });
  });

  test('are any fact of an action, and find their records again', async () => {
    await each(
      'POST /v1/evaluate',
      world.credential.agent,
      (text) => ({
        action_type: 'tool_call',
        tool_name: text,
        tool_server: text,
        resource: text,
        session_id: text,
        action_summary: text,
        arguments: { text, [text === '__proto__' ? 'proto' : `k${text}`]: [text] },
        context: { text },
      }),
      (_, answer) => expect(answer.event_id).toBeTypeOf('string'),
    );
    const { body } = await server.call<{ events: { tool_name: string; session_id: string }[] }>(
      200,
      'GET /v1/events?limit=1000',
      world.credential.admin,
    );
    const names = new Set(body.events.map(({ tool_name }) => tool_name));
    const fits = all.filter((text) => text !== '' && text.length <= 60 && holdable(text));
    for (const text of fits) expect(names.has(text), JSON.stringify(text)).toBe(true);
    for (const text of fits.slice(0, 60)) {
      const found = await server.call<{ events: { tool_name: string }[] }>(
        200,
        `GET /v1/events?tool_name=${encodeURIComponent(text)}`,
        world.credential.admin,
      );
      expect(found.body.events[0]?.tool_name).toBe(text);
    }
  });

  test('are any fact of an event, as it was sent', async () => {
    const who = world.credential.adminKey;
    const fits = all.filter((text) => text !== '' && text.length <= 128 && holdable(text));
    const ids = new Map<string, string>();
    for (let i = 0; i < fits.length; i += 100) {
      const events = fits.slice(i, i + 100).map((text) => {
        const made = event({
          proxy_id: text,
          session_id: text,
          tool_name: text,
          method: text,
          policy_id: text,
          deny_reason: text,
          rule_id: text,
          outcome: text,
          obligations: [text],
        });
        ids.set(made.event_id as string, text);
        return made;
      });
      const { body } = await server.call(202, 'POST /v1/events/ingest', who, { events });
      expect(body).toEqual({ accepted: events.length, duplicates: 0, rejected: [] });
    }
    const { body } = await server.call<{ events: Record<string, string>[] }>(
      200,
      'GET /v1/events?limit=1000',
      world.credential.admin,
    );
    for (const found of body.events.filter(({ id }) => ids.has(id!))) {
      const text = ids.get(found.id!);
      expect(found).toMatchObject({
        proxy_id: text,
        session_id: text,
        tool_name: text,
        method: text,
        policy_id: text,
        deny_reason: text,
      });
    }
  });

  test('are reasons and comments of reviews, as they were sent', async () => {
    const who = world.credential.adminKey;
    await server.call(201, 'POST /v1/policies', who, {
      id: 'reviewed',
      dsl_source: 'permit(principal, action, resource);',
    });
    // a reason is one line: what is around it is left out, and what breaks it is refused
    const isLine = (text: string) => text.trim() !== '' && !/[\p{Cc}\p{Zl}\p{Zp}]/u.test(text.trim());
    const fits = all.filter((text) => isLine(text) && text.length <= 200 && holdable(text)).slice(0, 60);
    const lines = fits.map((text) => text.trim());
    for (const text of fits) {
      await server.call(200, 'POST /v1/policies/reviewed/submit', who, { note: text });
      const { body } = await server.call(200, 'POST /v1/policies/reviewed/reject', who, { version: 1, reason: text });
      expect(body.status).toBe('draft');
    }
    const { body } = await server.call<{ versions: { note: string; reviews: { comment: string }[] }[] }>(
      200,
      'GET /v1/policies/reviewed',
      who,
    );
    expect(body.versions[0]!.note).toBe(fits.at(-1));
    expect(body.versions[0]!.reviews.map(({ comment }) => comment)).toEqual(lines);
    const audit = await server.call<{ records: { reason: string }[] }>(
      200,
      `GET /v1/audit?action=policy.rejected&limit=${fits.length}`,
      who,
    );
    expect(audit.body.records.map(({ reason }) => reason).reverse()).toEqual(lines);
    expect((await server.call(200, 'GET /v1/audit/verify', who)).body.verified).toBe(true);
  });

  test('are never accidentally a policy, nor cause a server error', async () => {
    const who = world.credential.adminKey;
    let invalid = 0;
    for (let i = 0; i < all.length; i += 16) {
      await Promise.all(
        all.slice(i, i + 16).map(async (text) => {
          const { body } = await server.call<{ valid: boolean; errors: { line: number; column: number }[] }>(
            200,
            'POST /v1/policies/validate',
            who,
            { dsl_source: text },
          );
          if (!body.valid) invalid++;
          for (const { line, column } of body.errors) expect(Math.min(line, column)).toBeGreaterThan(0);
        }),
      );
    }
    expect(invalid).toBe(all.length);
  });

  test('leave the chain intact', async () => {
    const { body } = await server.call(200, 'GET /v1/forensics/verify', world.credential.admin);
    expect(body).toMatchObject({ verified: true, linear: true });
  });
});
