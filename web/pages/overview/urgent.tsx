import { Button, Paper, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { useLastVerified } from '../../lib/verified.ts';
import { count } from '../../lib/words.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { DocsLink, PageLink } from '../../ui/link.tsx';
import { When } from '../../ui/time.tsx';

export const useFleet = () => useQuery(trpc.proxies.list.queryOptions({}, { refetchInterval: 15_000 }));

/** Only admins can see destinations. */
export const useDestinations = () => {
  const me = useMe();
  return useQuery(trpc.subscriptions.list.queryOptions({}, { enabled: me.has('admin'), refetchInterval: 60_000 }));
};

/** Only admins can see domains. */
const useDomains = () => {
  const me = useMe();
  return useQuery(trpc.sso.domains.queryOptions({}, { enabled: me.has('admin'), refetchInterval: 60_000 }));
};

const NAME = { forensics: 'chain of decisions', audit: 'audit log' } as const;

interface Matter {
  key: string;
  what: ReactNode;
  since?: string | undefined;
  /** The next step. */
  next: ReactNode;
}

/** What needs attention now, each with the next step. Stops in force are shown at the top of every page. */
export function Urgent() {
  const closed = useQuery(trpc.chain.closed.queryOptions({}, { refetchInterval: 60_000 }));
  const glass = useQuery(trpc.policies.list.queryOptions({ review: 'break_glass', limit: 5 }));
  const proxies = useFleet();
  const destinations = useDestinations();
  const domains = useDomains();
  const verified = { forensics: useLastVerified('forensics'), audit: useLastVerified('audit') };

  const matters: Matter[] = [];
  for (const { chain, noticed_at } of closed.data?.closed ?? []) {
    matters.push({
      key: `closed ${chain}`,
      what: `The ${NAME[chain === 'audit' ? 'audit' : 'forensics']} is closed: records that were acknowledged are missing`,
      since: noticed_at,
      next: <DocsLink path="restore">What an operator does</DocsLink>,
    });
  }
  for (const chain of ['forensics', 'audit'] as const) {
    const { record: last } = verified[chain];
    if (last?.action !== 'forensics.verification_failed') continue;
    matters.push({
      key: `broken ${chain}`,
      what: `The ${NAME[chain]} did not verify: stored records were changed`,
      since: last.created_at,
      next: <PageLink to={chain === 'audit' ? '/audit' : '/forensics'}>See where it breaks</PageLink>,
    });
  }
  for (const { id, open_review } of glass.data?.policies ?? []) {
    matters.push({
      key: `glass ${id}`,
      what: `The policy ${id} was enforced without approval, and nobody has reviewed it`,
      since: open_review?.opened_at,
      next: (
        <PageLink to="/review/$id" params={{ id }}>
          Review it
        </PageLink>
      ),
    });
  }
  // nobody is missed on a desktop
  const silent = proxies.data?.proxies.filter(({ state, desktop }) => state === 'silent' && !desktop) ?? [];
  if (silent.length > 0) {
    matters.push({
      key: 'proxies',
      what: `${count(silent.length, 'proxy is', 'proxies are')} silent: the newest policies and stops may not reach ${silent.length === 1 ? 'it' : 'them'}`,
      since: silent.map(({ last_seen_at }) => last_seen_at).sort()[0],
      next:
        silent.length === 1 ? (
          <PageLink to="/proxies/proxy" search={{ id: silent[0]!.proxy_id }}>
            See what to do
          </PageLink>
        ) : (
          <PageLink to="/proxies">See which</PageLink>
        ),
    });
  }
  for (const { id, url, disabled_at, failing_since } of destinations.data?.subscriptions ?? []) {
    if (!disabled_at && !failing_since) continue;
    matters.push({
      key: id,
      what: disabled_at ? (
        <>
          The server stopped sending to <Hostile text={url} />, which did not accept events
        </>
      ) : (
        <>
          <Hostile text={url} /> does not accept events; they are retried
        </>
      ),
      since: disabled_at ?? failing_since,
      next: (
        <PageLink to="/subscriptions/$id" params={{ id }}>
          See its answers
        </PageLink>
      ),
    });
  }
  for (const { domain, record_missing_since, lost_at } of domains.data?.domain_records ?? []) {
    if (!record_missing_since && !lost_at) continue;
    matters.push({
      key: `domain ${domain}`,
      what: lost_at
        ? `Another organization has taken over the domain ${domain}: nobody signs in with an address in it`
        : `The DNS record of ${domain} is missing: nobody signs in there for the first time, and after a week another organization can take the domain over`,
      since: lost_at ?? record_missing_since,
      next: <PageLink to="/sign-on">See the record</PageLink>,
    });
  }
  // if any of these is unknown, an empty list would claim that all is well
  const failed = [closed, glass, proxies, destinations, domains, verified.forensics.query, verified.audit.query].filter(
    ({ data, error }) => error && !data,
  );
  if (failed.length > 0) {
    matters.push({
      key: 'failed',
      what: 'What needs attention could not be loaded completely',
      next: (
        <Button variant="default" size="compact-sm" onClick={() => failed.forEach((query) => void query.refetch())}>
          Try again
        </Button>
      ),
    });
  }
  if (matters.length === 0) return null;
  return (
    <Paper p={0} component="section" className="urgent" data-tone="bad" aria-labelledby="urgent-title">
      <Title order={2} id="urgent-title" px="md" pt="sm" pb="xs">
        Needs attention
      </Title>
      <ul className="lines">
        {matters.map(({ key, what, since, next }) => (
          <li key={key}>
            <div className="lines-main">
              <strong>{what}</strong>
              {since ? (
                <span className="dim">
                  , <When at={since} />
                </span>
              ) : null}
            </div>
            <div>{next}</div>
          </li>
        ))}
      </ul>
    </Paper>
  );
}
