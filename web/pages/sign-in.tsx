import { Button, Paper, Stack, Text, TextInput, Title } from '@mantine/core';
import { getRouteApi } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { toastProblem } from '../lib/errors.tsx';
import { useServerForm } from '../lib/form.ts';
import { rememberNext } from '../lib/next.ts';
import { problemOf } from '../lib/problem.ts';
import { Mark } from '../ui/mark.tsx';
import { Notice } from '../ui/notice.tsx';

/** What to do if sign-in through the identity provider failed, by the code in the URL. */
const FAILURES: Readonly<Record<string, string>> = {
  sso_unknown: 'No organization has set up single sign-on for this address. Use an email link.',
  sso_unavailable: 'Your identity provider is not available right now. Try again, or ask an admin.',
  sso_expired: 'The sign-in took too long, was already used, or was started in another browser. Start again.',
  sso_no_access: 'Your account has no access here. Ask an admin to invite you.',
  sso_failed: 'The sign-in did not succeed. Start again, or ask an admin.',
};

const route = getRouteApi('/sign-in');

/** Sign-in by an email link or through the organization's identity provider. */
export function SignIn() {
  const { next, error, request_id: requestId } = route.useSearch();
  const failure = error === undefined ? undefined : (FAILURES[error] ?? FAILURES.sso_failed);
  const form = useServerForm({ initialValues: { email: '' } });
  const [sent, setSent] = useState(false);
  useEffect(() => {
    document.title = 'Sign in · Agent Governance';
    if (next) rememberNext(next);
  }, [next]);

  const send = async ({ email }: { email: string }) => {
    try {
      const response = await fetch('/auth/magic-link', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ email }),
      });
      if (response.ok) return setSent(true);
      toastProblem({ data: { problem: await response.json() } });
    } catch (error) {
      toastProblem(problemOf(error).code === 'UNREACHABLE' ? error : undefined);
    }
  };

  return (
    <main style={{ display: 'grid', placeItems: 'center', minHeight: '100vh', padding: 16 }}>
      <Paper w="100%" maw={400} p="xl">
        <Mark size={36} />
        <Title order={1} mt="sm">
          Sign in
        </Title>
        <Text c="dimmed" mb="md">
          to the agent governance control plane
        </Text>
        {failure && !sent && (
          <Notice tone="bad" title="You are not signed in" urgent>
            {failure}
            {requestId && (
              <Text size="xs" mt="xs">
                Request {requestId}
              </Text>
            )}
          </Notice>
        )}
        {sent ? (
          <Notice tone="ok" title="Check your email">
            If {form.values.email} belongs to a member, a link is on its way. It works once, within 15 minutes, in this
            browser.
            <div>
              <Button mt="sm" size="xs" variant="default" onClick={() => setSent(false)}>
                Use another address
              </Button>
            </div>
          </Notice>
        ) : (
          <form onSubmit={form.onSubmit(send)}>
            <Stack gap="sm">
              <TextInput
                label="Work email"
                type="email"
                name="email"
                autoComplete="email"
                required
                {...form.getInputProps('email')}
              />
              <Button type="submit" loading={form.submitting} fullWidth>
                Email me a sign-in link
              </Button>
              <Button
                variant="default"
                fullWidth
                onClick={(event) => {
                  if (!event.currentTarget.form?.reportValidity()) return;
                  window.location.assign(`/auth/sso/start?email=${encodeURIComponent(form.values.email)}`);
                }}
              >
                Continue with single sign-on
              </Button>
            </Stack>
          </form>
        )}
      </Paper>
    </main>
  );
}
