import { Group, Paper, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useEffect } from 'react';
import { tenantIn } from '../lib/next.ts';
import { meOptions } from '../lib/session.ts';
import { ButtonLink } from '../ui/link.tsx';
import { Mark } from '../ui/mark.tsx';

const route = getRouteApi('/other-organization');

/**
 * For people who open a mailed link for a different tenant than the one they are signed in to. The target of the link is neither
 * looked up nor named here: only that tenant knows whether this person belongs to it.
 */
export function OtherOrganization() {
  const { next } = route.useSearch();
  const me = useQuery(meOptions()).data;
  useEffect(() => {
    document.title = 'Another organization · Agent Governance';
  }, []);
  const tenant = next && tenantIn(next);
  return (
    <main style={{ display: 'grid', placeItems: 'center', minHeight: '100vh', padding: 16 }}>
      <Paper w="100%" maw={460} p="xl">
        <Mark size={36} />
        <Title order={1} mt="sm" mb="xs">
          This link is for another organization
        </Title>
        <Text mb="xs">
          {me?.user ? (
            <>
              You are signed in as <strong>{me.user.email}</strong> in the organization{' '}
              <span className="mono">{me.tenant_id}</span>.{' '}
            </>
          ) : null}
          This link leads to <span className="mono">{tenant}</span>. Sign in to that organization to open it. You will
          be signed out of this one.
        </Text>
        <Group gap="xs" mt="md">
          <ButtonLink to="/sign-in" search={{ next }}>
            Sign in there
          </ButtonLink>
          <ButtonLink to="/" variant="default">
            Stay here
          </ButtonLink>
        </Group>
      </Paper>
    </main>
  );
}
