import '@mantine/core/styles/Checkbox.css';
import { Checkbox, NativeSelect, Paper, Stack, Text, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { MAIL_KINDS, type MailKind } from '../../../server/domain/mail.ts';
import { toastDone } from '../../lib/errors.tsx';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, type Inputs, trpc } from '../../lib/trpc.ts';
import { FormFoot } from '../../ui/form.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Shown } from '../../ui/states.tsx';

type Preferences = Answers['mailPreferences']['get'];
type Pace = Inputs['mailPreferences']['set']['pace'];

const PACES: Record<Pace, string> = {
  none: 'no mail',
  each: 'one for each',
  hourly: 'one an hour, with all that waits',
  daily: 'one a day, with all that waits',
};
const KINDS: Record<MailKind, string> = {
  hold: 'Held actions that need my vote',
  review: 'Policies that need my review',
};

/** Which events the signed-in person gets mail about. */
export function MailPreferences() {
  const query = useQuery(trpc.mailPreferences.get.queryOptions({}));
  const me = useMe();
  return (
    <Paper component="section" aria-label="Mail">
      <Title order={2} size="h3" mb="xs">
        Mail
      </Title>
      <Shown query={query} lines={3}>
        {(preferences) => (
          <Stack gap="sm">
            {preferences.available ? null : (
              <Notice tone="wait" title="This server sends no such mail">
                It has no mail server. What you choose here applies once an operator sets SMTP_URL.
              </Notice>
            )}
            {me.has('approver') ? null : (
              <Text size="sm" c="dimmed">
                Only approvers are asked to vote and review. You get none of this mail without that role.
              </Text>
            )}
            <Choices key={JSON.stringify(preferences)} preferences={preferences} />
          </Stack>
        )}
      </Shown>
    </Paper>
  );
}

function Choices({ preferences }: { preferences: Preferences }) {
  const [pace, setPace] = useState<Pace>(preferences.pace);
  const [kinds, setKinds] = useState(preferences.kinds);
  const [hour, setHour] = useState(preferences.daily_hour);
  const save = useMutation(
    trpc.mailPreferences.set.mutationOptions({
      meta: { quiet: true },
      onSuccess: () => toastDone('Saved'),
      onSettled: () => queryClient.invalidateQueries(trpc.mailPreferences.get.pathFilter()),
    }),
  );
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate({ pace, kinds, daily_hour: hour });
      }}
    >
      <Stack gap="sm">
        <NativeSelect
          label="How often"
          description={
            pace === 'each'
              ? 'At most 10 in an hour. What comes after those waits for the next hour, in one mail.'
              : null
          }
          value={pace}
          onChange={(event) => setPace(event.currentTarget.value as Pace)}
          data={Object.entries(PACES).map(([value, label]) => ({ value, label }))}
        />
        {pace === 'daily' ? (
          <NativeSelect
            label="At"
            value={String(hour)}
            onChange={(event) => setHour(Number(event.currentTarget.value))}
            data={Array.from({ length: 24 }, (_, n) => ({
              value: String(n),
              label: `${String(n).padStart(2, '0')}:00 UTC`,
            }))}
          />
        ) : null}
        {pace === 'none' ? null : (
          <Checkbox.Group
            label="About"
            value={kinds}
            onChange={(chosen) => setKinds(MAIL_KINDS.filter((kind) => chosen.includes(kind)))}
          >
            <Stack gap={6} mt={4}>
              {MAIL_KINDS.map((kind) => (
                <Checkbox key={kind} value={kind} label={KINDS[kind]} />
              ))}
            </Stack>
          </Checkbox.Group>
        )}
        <Text size="sm" c="dimmed">
          A mail shows the tool, the reason and the masked arguments, and leaves this server. Its links open the vote;
          they never cast it.
        </Text>
        <FormFoot
          fault={save.error ? (problemOf(save.error).detail ?? problemOf(save.error).title) : null}
          action="Save"
          busy={save.isPending}
          disabled={kinds.length === 0}
        />
      </Stack>
    </form>
  );
}
