/**
 * Pipelines and other programs that sign in with a token from their platform (GitHub, GitLab, Kubernetes, SPIFFE) instead of a
 * stored key: what a tenant may trust of such a token, and what it reveals about where a change comes from. Pure.
 */
/** `policies:submit`: requests a review of what it wrote, in place of a signed-in person. */
export const WORKLOAD_SCOPES = ['policies:read', 'policies:write', 'policies:submit'] as const;
export type WorkloadScope = (typeof WORKLOAD_SCOPES)[number];

/** Claims that a token must have: exact values, or a prefix followed by `*` where PREFIXABLE allows it. */
export type ClaimMatch = Readonly<Record<string, string>>;

/** The claims for which a prefix may be trusted: they name something within what another claim identifies. */
const PREFIXABLE = ['environment', 'ref', 'ref_path', 'job_workflow_ref', 'workflow_ref', 'ci_config_ref_uri'] as const;

export const MATCH_LIMITS = { claims: 20, value: 500 } as const;

/** Either checked for every token anyway, or new in each one. */
const REGISTERED = ['iss', 'aud', 'exp', 'iat', 'nbf', 'jti'];

/** A name can be given up and then taken by someone else; the id that must accompany it cannot. */
const ID_OF_NAME: Readonly<Record<string, readonly string[]>> = {
  repository: ['repository_id'],
  repository_owner: ['repository_owner_id', 'repository_id'],
  project_path: ['project_id'],
  namespace_path: ['namespace_id', 'project_id'],
  actor: ['actor_id'],
  user_login: ['user_id'],
};

/**
 * Subjects that by themselves identify whose token it is: names given out by a cluster or trust domain of one's own, and opaque
 * ids. INVARIANT: GitHub and GitLab do not sign such a subject for anyone. Theirs are composed of claims that each repository
 * chooses for itself (`job_workflow_ref:…`, `environment:…`, `pull_request`), so a stranger's may be the same.
 */
const SUBJECT_ALONE = [
  /^system:serviceaccount:[a-z0-9-]{1,63}:[a-z0-9.-]{1,253}$/,
  /^spiffe:\/\/[a-z0-9._-]{1,255}(?:\/[\w.-]+)+$/,
  /^[0-9]+$/,
  /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i,
  // what other issuers use as a random id: long enough, and with a digit, so that it cannot be a word
  /^(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}$/,
];

/** Why a tenant must not trust these claims with these scopes, keyed by the claim in question. Empty if it may. */
export function faultsOfMatch(
  match: ClaimMatch,
  scopes: readonly WorkloadScope[],
): { claim: string; message: string }[] {
  const faults: { claim: string; message: string }[] = [];
  const fault = (claim: string, message: string) => faults.push({ claim, message });
  for (const [claim, value] of Object.entries(match)) {
    if (REGISTERED.includes(claim)) fault(claim, 'is checked for every token and cannot be matched');
    const star = value.indexOf('*');
    if (star >= 0) {
      if (!(PREFIXABLE as readonly string[]).includes(claim)) {
        fault(claim, `must be exact: only ${PREFIXABLE.join(', ')} may end with *`);
      } else if (star !== value.length - 1) fault(claim, 'may have one *, at its end');
      else if (!/[^/@:-][/@:-]\*$/.test(value)) fault(claim, 'needs a prefix that ends with /, @, : or - before *');
      else if (/^refs\/\*$/.test(value)) fault(claim, 'would match pull requests too: use refs/heads/*');
    }
    const ids = ID_OF_NAME[claim];
    if (ids && !ids.some((id) => exact(match, id))) {
      fault(claim, `is a name, which somebody else may take later: also match ${ids.join(' or ')}`);
    }
  }
  const subject = exact(match, 'sub') && SUBJECT_ALONE.some((form) => form.test(match.sub!));
  const one = subject || exact(match, 'repository_id') || exact(match, 'project_id');
  const group = exact(match, 'repository_owner_id') || exact(match, 'namespace_id');
  if (!one && !group) {
    fault(
      '',
      'must say whose token it is: repository_id, project_id, repository_owner_id, namespace_id, or a sub of Kubernetes, of SPIFFE or that is one id; at GitHub and GitLab a sub is never enough',
    );
  }
  if (scopes.some((scope) => scope !== 'policies:read')) {
    if (!one)
      fault('', 'policies:write needs one repository or project: match repository_id, project_id or such a sub');
    if (!subject && !['ref', 'ref_path', 'environment'].some((claim) => Object.hasOwn(match, claim))) {
      fault('', 'policies:write needs ref, ref_path or environment: otherwise every branch could change policies');
    }
  }
  return faults;
}

const exact = (match: ClaimMatch, claim: string) => Object.hasOwn(match, claim) && !match[claim]!.includes('*');

type Claims = Readonly<Record<string, unknown>>;

/** A claim that is a text; undefined for anything else, so that an array or a number never matches. */
function textOf(claims: Claims, name: string): string | undefined {
  const value = Object.hasOwn(claims, name) ? claims[name] : undefined;
  return typeof value === 'string' ? value : undefined;
}

/** Whether a token has all the claims. */
export function matches(match: ClaimMatch, claims: Claims): boolean {
  const wanted = Object.entries(match);
  return wanted.length > 0 && wanted.every(([name, value]) => fits(value, textOf(claims, name)));
}

/** Whether a text equals the pattern, or begins with what precedes the pattern's final `*` and continues. */
function fits(pattern: string, value: string | undefined): boolean {
  if (value === undefined) return false;
  if (!pattern.endsWith('*')) return value === pattern;
  const prefix = pattern.slice(0, -1);
  return value.length > prefix.length && value.startsWith(prefix);
}

/** Runs started by someone who may write to the repository, on code that is in it. */
const GITHUB_EVENTS = ['push', 'workflow_dispatch', 'schedule', 'release', 'deployment', 'repository_dispatch'];
const GITLAB_SOURCES = ['push', 'web', 'schedule', 'api', 'trigger', 'pipeline'];

/**
 * Why the run of a token may not write, whatever a tenant trusts; undefined if it may. Runs for pull requests may have been
 * started by anyone, even if they have the `ref` of the main branch (pull_request_target, workflow_run).
 */
export function writingRefused(claims: Claims): string | undefined {
  const started = [
    { of: 'repository_id', by: 'event_name', from: GITHUB_EVENTS },
    { of: 'project_id', by: 'pipeline_source', from: GITLAB_SOURCES },
  ];
  for (const { of, by, from } of started) {
    if (!Object.hasOwn(claims, of) && !Object.hasOwn(claims, by)) continue;
    const event = textOf(claims, by);
    if (event === undefined || !from.includes(event)) {
      return `a run with this ${by} cannot write: only ${from.join(', ')} can`;
    }
  }
  for (const claim of ['ref', 'ref_path'].filter((name) => Object.hasOwn(claims, name))) {
    const ref = textOf(claims, claim);
    if (ref === undefined || /^refs\/(?!heads\/|tags\/)/.test(ref)) {
      return `a run with this ${claim} cannot write: only branches and tags can`;
    }
  }
  return undefined;
}

export const SOURCE_FIELDS = ['repo', 'commit', 'ref', 'path', 'run_url', 'actor'] as const;
type SourceField = (typeof SOURCE_FIELDS)[number];
export type StatedSource = { [F in SourceField]?: string | undefined };
/** Where a version of a policy comes from, and the members that its pipeline's token proves; the others are only stated. */
export type Source = StatedSource & { proven: SourceField[] };
export const SOURCE_LENGTH = 300;

/** What a token proves about where its run takes a change from. Only plain values are accepted. */
export function provenSource(issuer: string, claims: Claims): StatedSource {
  const plain = (pattern: RegExp, ...names: string[]) => {
    const value = names.map((name) => textOf(claims, name)).find((one) => one !== undefined);
    return value !== undefined && value.length <= SOURCE_LENGTH && pattern.test(value) ? value : undefined;
  };
  const repo = plain(/^[\w.-]+(?:\/[\w.-]+)+$/, 'repository', 'project_path');
  const number = (name: string) => plain(/^\d{1,20}$/, name);
  const github = Object.hasOwn(claims, 'repository') ? githubOf(issuer) : undefined;
  const [run, job] = [number('run_id'), number('job_id')];
  const run_url =
    repo && github && run
      ? `${github}/${repo}/actions/runs/${run}`
      : repo && job && Object.hasOwn(claims, 'project_path') && /^https:/.test(issuer)
        ? `${issuer.replace(/\/$/, '')}/${repo}/-/jobs/${job}`
        : undefined;
  const found: StatedSource = {};
  const put = (field: SourceField, value: string | undefined) => {
    if (value !== undefined) found[field] = value;
  };
  put('repo', repo);
  put('commit', plain(/^[0-9a-f]{7,64}$/, 'sha'));
  put('ref', plain(/^[\w./@+-]+$/, 'ref'));
  put('run_url', run_url);
  put('actor', plain(/^[\w.@[\]-]+$/, 'actor', 'user_login') ?? plain(/^[\x21-\x7e]+$/, 'sub'));
  return found;
}

/** The address of the GitHub instance that an issuer belongs to. */
function githubOf(issuer: string): string | undefined {
  if (issuer === 'https://token.actions.githubusercontent.com') return 'https://github.com';
  const [, own] = /^(https:\/\/[\w.-]+(?::\d+)?)\/_services\/token$/.exec(issuer) ?? [];
  const [, tenant] = /^https:\/\/token\.actions\.([\w-]+\.ghe\.com)$/.exec(issuer) ?? [];
  return own ?? (tenant && `https://${tenant}`);
}

/** Proven values replace stated ones. */
export function sourceOf(stated: StatedSource | undefined, proven: StatedSource | undefined): Source | null {
  const all = { ...stated, ...proven };
  const known = SOURCE_FIELDS.filter((field) => all[field] !== undefined);
  if (known.length === 0) return null;
  return {
    ...Object.fromEntries(known.map((field) => [field, all[field]])),
    proven: known.filter((field) => proven?.[field] !== undefined),
  };
}

/** The source in one bounded line for an audit record, quoted, so that no value is taken for another part of it. */
export function sourceInWords(source: Source): string {
  const words = SOURCE_FIELDS.filter((field) => source[field] !== undefined).map(
    (field) => `${source.proven.includes(field) ? 'proven' : 'stated'} ${field} ${JSON.stringify(source[field])}`,
  );
  return `source: ${words.join(', ')}`;
}

/** Whether a trust with this glob (an id, or a prefix and `*`; null for all) covers a policy. */
export function coversPolicy(glob: string | null, id: string): boolean {
  return glob === null || (glob.endsWith('*') ? id.startsWith(glob.slice(0, -1)) : id === glob);
}
