import { Notice } from '../../ui/notice.tsx';
import '@mantine/core/styles/Tabs.css';
import { Box, Paper, Tabs, Title, VisuallyHidden } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Link } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { later } from '../../lib/later.tsx';
import { usePeople } from '../../lib/people.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { ChangesAsked } from '../../parts/changes-asked.tsx';
import { Failures, marksOf, Reach, TestCounts, TestsDiff } from '../../parts/policy-tests.tsx';
import { SimulationPanel } from '../../parts/simulation.tsx';
import { Broken } from '../../ui/broken.tsx';
import type { Problem } from '../../ui/editor/code-editor.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading, Shown } from '../../ui/states.tsx';
import { PolicyTags } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { PolicyActions } from './actions.tsx';
import { Draft, type PolicyDetail } from './draft.tsx';
import { FormatButton } from './format.tsx';
import { History } from './history.tsx';
import { Rules } from './rules.tsx';
import type { PolicyTab } from './search.ts';
import { Tests } from './tests.tsx';
import { TryIt } from './try.tsx';
import './policy.css';

const MachineStanding = later(async () => (await import('../../parts/machine/standing.tsx')).MachineStanding, {
  meanwhile: <Loading />,
});

const route = getRouteApi('/app/policies/$id');

/** One policy: its text and a form to try it, its changes against the enforced version, its rules and its history. */
export function PolicyPage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.policies.get.queryOptions({ id }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  return query.data ? <PolicyView policy={query.data} key={id} /> : <PlaceHolder id={id} />;
}

const PlaceHolder = ({ id }: { id: string }) => (
  <Page title={id}>
    <Loading lines={12} />
  </Page>
);

function PolicyView({ policy }: { policy: PolicyDetail }) {
  const { tab = 'text' } = route.useSearch();
  const navigate = route.useNavigate();
  const name = usePeople();
  return (
    <Page
      title={
        <>
          {policy.id} <PolicyTags policy={policy} />
        </>
      }
      tab={policy.id}
      lead={
        <>
          Version {policy.version} by {name(policy.author_id)}, <When at={policy.updated_at} />
          {policy.live_version === null
            ? ' · not enforced'
            : policy.live_version === policy.version
              ? ' · enforced'
              : ` · version ${policy.live_version} is enforced`}
        </>
      }
      actions={<PolicyActions policy={policy} />}
    >
      {policy.open_review ? (
        <Notice tone="wait" title="Deployed by break glass">
          Version {policy.open_review.version} was enforced without approval by {name(policy.open_review.actor)}
          {policy.open_review.reason ? (
            <>
              : “<Hostile text={policy.open_review.reason} />”
            </>
          ) : null}
          . Another approver must review it and{' '}
          <Link to="/review/$id" params={{ id: policy.id }}>
            close the review
          </Link>
          .
        </Notice>
      ) : null}
      <ChangesAsked policy={policy} link />
      <LiveTests policy={policy} />
      <Tabs value={tab} onChange={(next) => void navigate({ search: { tab: next as PolicyTab } })} keepMounted={false}>
        <Tabs.List mb="md">
          <Tabs.Tab value="text">Text</Tabs.Tab>
          <Tabs.Tab value="tests">Tests</Tabs.Tab>
          <Tabs.Tab value="diff">Changes</Tabs.Tab>
          <Tabs.Tab value="rules">Rules</Tabs.Tab>
          <Tabs.Tab value="history">History</Tabs.Tab>
          <Tabs.Tab value="machine">Lifecycle</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="text">
          <Workbench policy={policy} />
        </Tabs.Panel>
        <Tabs.Panel value="tests">
          <Tests policy={policy} />
        </Tabs.Panel>
        <Tabs.Panel value="diff">
          <LiveDiff policy={policy} />
          {policy.version === policy.live_version || policy.status === 'revoked' ? null : (
            <Box mt="md">
              <SimulationPanel policyId={policy.id} version={policy.version} key={policy.version} />
            </Box>
          )}
        </Tabs.Panel>
        <Tabs.Panel value="rules">
          <Rules id={policy.id} />
        </Tabs.Panel>
        <Tabs.Panel value="history">
          <History policy={policy} />
        </Tabs.Panel>
        <Tabs.Panel value="machine">
          <MachineStanding machine="policy" id={policy.id} />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}

/** Warns if the tests of the enforced version now fail: since it was enforced, a list or the tool registry may have changed. */
function LiveTests({ policy: { id, live_version: version } }: { policy: PolicyDetail }) {
  const query = useQuery({
    queryKey: ['live tests', id, version],
    queryFn: async () => {
      const { dsl_source, tests_source } = await api.policies.version.query({ id, version: version! });
      return tests_source === null ? null : api.policies.test.mutate({ id, dsl_source, tests_source });
    },
    enabled: version !== null,
    retry: false,
  });
  const run = query.data;
  if (!run?.valid || run.failed === 0) return null;
  return (
    <Notice tone="wait" title={`Tests of the enforced version ${version} now fail`}>
      They passed when it was enforced. Since then a list, the tool registry or another policy may have changed.
      <Failures run={run} />
    </Notice>
  );
}

/** The text of a policy, checked as it is written, with the test coverage next to each line. */
function Workbench({ policy }: { policy: PolicyDetail }) {
  const { ask } = route.useSearch();
  const navigate = route.useNavigate();
  const [broken, setBroken] = useState(false);
  const [run, setRun] = useState<Answers['policies']['test']>();
  const newest = useRef('');
  const suite = policy.tests_source;
  const measure = async (text: string) => {
    newest.current = text;
    if (suite === null) return;
    const input = { id: policy.id, dsl_source: text, tests_source: suite };
    const answer = await api.policies.test.mutate(input).catch(() => undefined);
    if (answer?.valid && newest.current === text) setRun(answer);
  };
  const onProblems = (found: readonly Problem[], text: string) => {
    const errors = found.some(({ severity }) => severity === 'error');
    setBroken(errors);
    if (!errors) void measure(text);
  };
  return (
    <Draft
      policy={policy}
      part="text"
      broken={broken}
      editor={{ onProblems, ...(run && { marks: marksOf(run.coverage) }) }}
      buttons={({ editor, text }) => <FormatButton editor={editor} text={text} disabled={broken} />}
      below={({ editor }) =>
        run ? (
          <Paper component="section" aria-labelledby="reach-title" mt="md">
            <Title order={2} id="reach-title">
              Tests of this text
            </Title>
            <div aria-live="polite">
              <TestCounts run={run} />
            </div>
            <Failures run={run} />
            <Reach coverage={run.coverage} goTo={(line) => editor.current?.goTo(line)} />
          </Paper>
        ) : null
      }
      beside={({ editor, text }) => (
        <TryIt
          policyId={policy.id}
          text={text}
          goTo={(line) => editor.current?.goTo(line)}
          asked={ask}
          ask={(id) => void navigate({ search: (old) => ({ ...old, ask: id }), replace: true, resetScroll: false })}
        />
      )}
    />
  );
}

function LiveDiff({ policy }: { policy: PolicyDetail }) {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const versions = policy.versions.map(({ version }) => version);
  const to = search.to ?? policy.version;
  const from =
    search.from ?? (policy.live_version !== null && policy.live_version !== to ? policy.live_version : to - 1);
  const before = useQuery({
    ...trpc.policies.version.queryOptions({ id: policy.id, version: Math.max(1, from) }),
    enabled: from > 0,
  });
  const after = useQuery(trpc.policies.version.queryOptions({ id: policy.id, version: to }));
  const nameOf = (version: number) => `version ${version}${version === policy.live_version ? ' (enforced)' : ''}`;
  const select = (label: string, value: number, onChange: (version: number) => void) => (
    <label className="inline-select">
      {label}{' '}
      <select value={value} onChange={(event) => onChange(Number(event.currentTarget.value))}>
        {versions.map((version) => (
          <option key={version} value={version}>
            {nameOf(version)}
          </option>
        ))}
      </select>
    </label>
  );
  if (from < 1) return <Paper>There is only one version, so there is nothing to compare.</Paper>;
  return (
    <>
      <VisuallyHidden component="h2">Changes of the texts</VisuallyHidden>
      <div className="bar">
        {select('from', from, (version) => void navigate({ search: (old) => ({ ...old, from: version }) }))}
        {select('to', to, (version) => void navigate({ search: (old) => ({ ...old, to: version }) }))}
      </div>
      <Shown query={before}>
        {(old) => (
          <Shown query={after}>
            {(next) => (
              <>
                <Diff before={old.dsl_source} after={next.dsl_source} label={`${nameOf(from)} → ${nameOf(to)}`} />
                <TestsDiff before={old} after={next} />
              </>
            )}
          </Shown>
        )}
      </Shown>
    </>
  );
}
