import { Button, Group, Paper, Stack, Text, TextInput, Title } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { IconPackageExport } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi, useNavigate } from '@tanstack/react-router';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { fieldTime, fromFieldTime, fullTime, useZone } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';

const DAY = 86_400_000;
const PRESETS = { '24 hours': DAY, '7 days': 7 * DAY, '30 days': 30 * DAY } as const;

type Range = { from: string; to: string; chain?: 'audit' } | { sequence_id: string };

const route = getRouteApi('/app/forensics');
const BY = { time: 'By time', session: 'By session', audit: 'Audit log' } as const;

/** The time span until now, plus a minute for decisions made while the form is filled in. */
const last = (ms: number) => ({
  from: new Date(Date.now() - ms).toISOString(),
  to: new Date(Date.now() + 60_000).toISOString(),
});

/** Creates evidence packages. Shows what a range contains first, and splits a range that is too large. */
export function ExportForm() {
  const navigate = useNavigate();
  const [zone] = useZone();
  const asks = route.useSearch();
  const form = useServerForm({
    initialValues: {
      by: (asks.session === undefined ? 'time' : 'session') as keyof typeof BY,
      ...last(7 * DAY),
      session: '',
      purpose: '',
      ...asks,
    },
  });
  const { by, from, to, session, purpose } = form.values;
  const range: Range =
    by === 'session'
      ? { sequence_id: session.trim() }
      : { from, to, ...(by === 'audit' && { chain: 'audit' as const }) };
  const [asked] = useDebouncedValue(range, 300);
  const valid = 'from' in asked ? asked.from < asked.to : asked.sequence_id !== '';
  const plan = useQuery(trpc.forensics.plan.queryOptions(asked, { enabled: valid, retry: false }));
  const make = useMutation(
    trpc.forensics.export.mutationOptions({
      onSuccess: async ({ package_id, record_count }) => {
        toastDone('Package signed', `${record_count.toLocaleString()} records, ready to download`);
        await queryClient.invalidateQueries(trpc.forensics.list.pathFilter());
        await navigate({ to: '/forensics/packages/$id', params: { id: package_id } });
      },
    }),
  );
  return (
    <Paper component="section" aria-labelledby="export-title">
      <Title order={2} size="h3" id="export-title">
        Export evidence
      </Title>
      <Text c="dimmed" mb="sm">
        A signed package of decision records and of who approved them, or of the audit log. Anyone can check it without
        this server.
      </Text>
      <form onSubmit={form.onSubmit(() => make.mutate({ purpose: purpose.trim(), ...range }))}>
        <Stack gap="sm">
          {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
          <div className="segments" role="group" aria-label="Choose records by" style={{ alignSelf: 'flex-start' }}>
            {(Object.keys(BY) as (keyof typeof BY)[]).map((one) => (
              <button key={one} type="button" aria-pressed={by === one} onClick={() => form.setFieldValue('by', one)}>
                {BY[one]}
              </button>
            ))}
          </div>
          {by !== 'session' ? (
            <>
              <Group gap="xs" grow preventGrowOverflow={false}>
                <TextInput
                  type="datetime-local"
                  label={`From (${zone === 'utc' ? 'UTC' : 'local'})`}
                  value={fieldTime(from, zone)}
                  onChange={(event) =>
                    form.setFieldValue('from', fromFieldTime(event.currentTarget.value, zone) ?? from)
                  }
                />
                <TextInput
                  type="datetime-local"
                  label={`Until (${zone === 'utc' ? 'UTC' : 'local'})`}
                  value={fieldTime(to, zone)}
                  onChange={(event) => form.setFieldValue('to', fromFieldTime(event.currentTarget.value, zone) ?? to)}
                  error={from >= to ? 'must be after the start' : undefined}
                />
              </Group>
              <Group gap={6}>
                {Object.entries(PRESETS).map(([name, ms]) => (
                  <Button key={name} size="compact-xs" variant="default" onClick={() => form.setValues(last(ms))}>
                    Last {name}
                  </Button>
                ))}
              </Group>
            </>
          ) : (
            <TextInput
              label="Session id"
              description="Every record from the first to the last of this session, including records in between"
              {...form.getInputProps('session')}
            />
          )}
          <TextInput
            label="Purpose"
            description="Recorded in the package and in the audit log"
            required
            maxLength={500}
            {...form.getInputProps('purpose')}
          />
          <div role="status">
            {plan.error ? (
              <div className="plan" data-tone="wait">
                {problemOf(plan.error).detail ?? problemOf(plan.error).title}
              </div>
            ) : null}
            {plan.data && valid ? (
              <Plan plan={plan.data} onChoose={({ from, to }) => form.setValues({ from, to })} />
            ) : null}
          </div>
          <Button
            type="submit"
            style={{ alignSelf: 'flex-start' }}
            leftSection={<IconPackageExport size={17} aria-hidden />}
            loading={make.isPending}
            disabled={!valid || !plan.data || plan.data.parts.length > 0 || purpose.trim() === ''}
          >
            Sign and export
          </Button>
          {make.isPending ? (
            <Text size="sm" role="status">
              The records are packed, hashed and signed. This page opens the package when it is done.
            </Text>
          ) : null}
        </Stack>
      </form>
    </Paper>
  );
}

function Plan({
  plan,
  onChoose,
}: {
  plan: Answers['forensics']['plan'];
  onChoose: (part: { from: string; to: string }) => void;
}) {
  const [zone] = useZone();
  const many = plan.record_count > plan.limit;
  const n = plan.record_count;
  return (
    <div className="plan" data-tone={many ? 'wait' : n === 0 ? 'quiet' : 'info'}>
      <strong>
        {n.toLocaleString()} {n === 1 ? 'record' : 'records'}
      </strong>
      {n === 0 ? ' in this range. The package would contain only that statement.' : null}
      {many ? (
        <>
          {` are too many for one package of at most ${plan.limit.toLocaleString()}. Export it in ${plan.parts.length} parts:`}
          <ul>
            {plan.parts.map((part) => (
              <li key={part.from}>
                {fullTime(part.from, zone)} – {fullTime(part.to, zone)}, {part.record_count.toLocaleString()} records{' '}
                <Button size="compact-xs" variant="default" onClick={() => onChoose(part)}>
                  Choose
                </Button>
              </li>
            ))}
          </ul>
        </>
      ) : null}
    </div>
  );
}
