import { OPERATOR } from '../../server/domain/audit.ts';
import type { TestDns } from './dns.ts';
import type { Answer, Credential, TestServer, TestTenant } from './server.ts';
import { Visitor } from './visitor.ts';

/** The public URL of test servers, to which providers send browsers back. */
export const BASE_URL = 'http://control.test';

export interface AuditRow {
  action: string;
  code: string;
  severity: string;
  detail?: string;
  actor: { type: string; id: string; email?: string };
  target: { type: string; id: string };
  request_id?: string;
}

export async function audited(server: TestServer, tenant: TestTenant, query = ''): Promise<AuditRow[]> {
  const { body } = await server.call<{ records: AuditRow[] }>(200, `GET /v1/audit?limit=1000${query}`, tenant.admin);
  return body.records;
}

/** Configures the tenant's provider as its first admin, signed in. */
export async function setProvider(
  server: TestServer,
  tenant: TestTenant,
  input: Record<string, unknown>,
  expected = 200,
): Promise<Answer> {
  const who = await tenant.enter(tenant.admin.userId);
  return server.call(expected, 'PUT /v1/settings/sso', who, { reason: 'as agreed', ...input });
}

/** Where the provider of the connection that was made first sends browsers back to. */
export const PLAIN_REDIRECT_URI = `${BASE_URL}/auth/callback`;
/** Where any other tenant's provider sends browsers back to. */
export const redirectUriOf = (tenant: TestTenant) => `${PLAIN_REDIRECT_URI}/${tenant.id}`;

/** A browser that reaches the server at its public URL. */
export function newBrowser(server: TestServer): Visitor {
  return new Visitor({ 'control.test': new URL(server.url).host });
}

export async function addMember(server: TestServer, tenant: TestTenant, email: string, ...roles: string[]) {
  return server.core.tenants.addMember(tenant.id, { email, roles }, { actor: OPERATOR });
}

/** Claims a domain, puts its record into DNS, and verifies it. */
export async function verifyDomain(
  server: TestServer,
  dns: Pick<TestDns, 'names'>,
  who: Credential,
  domain: string,
): Promise<void> {
  const { body } = await server.call<{ domain_records: { txt_name: string; txt_value: string }[] }>(
    201,
    'POST /v1/settings/sso/domains',
    who,
    { domain },
  );
  const { txt_name, txt_value } = body.domain_records[0]!;
  dns.names[txt_name] = { txt: [txt_value] };
  await server.call(200, `POST /v1/settings/sso/domains/${domain}/verify`, who);
}

/** Where the browser ends up after the callback, and who is signed in then. */
export async function finish(server: TestServer, browser: Visitor, callback: string) {
  const response = await browser.send(callback);
  const location = new URL(response.headers.get('location') ?? 'none:', BASE_URL);
  const session = browser.cookies(BASE_URL).get('svc_session');
  return {
    status: response.status,
    path: location.pathname,
    error: location.searchParams.get('error'),
    requestId: location.searchParams.get('request_id'),
    who: session === undefined ? undefined : { cookie: `svc_session=${session}` },
    server,
  };
}
