import { Notice } from '../../ui/notice.tsx';
import '@mantine/core/styles/Tabs.css';
import { Button, Paper, Tabs, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi, Link, useBlocker } from '@tanstack/react-router';
import { lazy, Suspense, useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { TestsDiff } from '../../parts/policy-tests.tsx';
import { Broken } from '../../ui/broken.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { Editor } from '../../ui/editor/editor.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading, Shown } from '../../ui/states.tsx';
import { PolicyTag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { PolicyActions } from './actions.tsx';
import { FormatButton } from './format.tsx';
import { History } from './history.tsx';
import { Rules } from './rules.tsx';
import type { PolicyTab } from './search.ts';
import { Tests } from './tests.tsx';
import { TryIt } from './try.tsx';
import './policy.css';

const MachineStanding = lazy(() =>
  import('../../parts/machine/standing.tsx').then((module) => ({ default: module.MachineStanding })),
);

const route = getRouteApi('/app/policies/$id');

export type PolicyDetail = Answers['policies']['get'];

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
          {policy.id} <PolicyTag status={policy.status} />
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
          {policy.open_review.reason ? `: “${policy.open_review.reason}”` : ''}. Another approver must review it and{' '}
          <Link to="/review/$id" params={{ id: policy.id }}>
            close the review
          </Link>
          .
        </Notice>
      ) : null}
      <Tabs
        value={tab}
        onChange={(next) => void navigate({ search: { tab: next as PolicyTab }, replace: true })}
        keepMounted={false}
      >
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
        </Tabs.Panel>
        <Tabs.Panel value="rules">
          <Rules id={policy.id} />
        </Tabs.Panel>
        <Tabs.Panel value="history">
          <History policy={policy} />
        </Tabs.Panel>
        <Tabs.Panel value="machine">
          <Suspense fallback={<Loading />}>
            <MachineStanding machine="policy" id={policy.id} />
          </Suspense>
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}

function Workbench({ policy }: { policy: PolicyDetail }) {
  const me = useMe();
  const editor = useRef<EditorHandle>(null);
  const text = useRef(policy.dsl_source);
  /** The version that the editor was opened with, which may no longer be the newest. */
  const [base, setBase] = useState({ version: policy.version, source: policy.dsl_source });
  const [dirty, setDirty] = useState(false);
  const [broken, setBroken] = useState(false);
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const save = useMutation(
    trpc.policies.update.mutationOptions({
      onSuccess: (next) => {
        setBase({ version: next.version, source: text.current });
        setDirty(false);
        toastDone(
          `Version ${next.version} saved`,
          next.live_version === next.version ? 'It is enforced.' : 'It is a draft: submit it for review.',
        );
      },
    }),
  );
  const blocker = useBlocker({ shouldBlockFn: () => dirty, enableBeforeUnload: () => dirty, withResolver: true });
  const mayWrite = me.has('author');
  const submit = () => dirty && !broken && save.mutate({ id: policy.id, dsl_source: text.current });
  const deploysAtOnce = policy.status === 'deployed' && settings.data?.approval_required === false;

  return (
    <>
      {policy.version !== base.version && policy.dsl_source !== base.source ? (
        <Notice tone="wait" title={`Version ${policy.version} is newer`}>
          You are editing version {base.version}. Saving creates a version after {policy.version}.{' '}
          <Button
            size="compact-xs"
            variant="default"
            onClick={() => {
              editor.current?.replace(policy.dsl_source);
              setBase({ version: policy.version, source: policy.dsl_source });
              setDirty(false);
            }}
          >
            Load version {policy.version}
          </Button>
        </Notice>
      ) : null}
      <div className="bench">
        <div>
          <Editor
            initial={base.source}
            policyId={policy.id}
            handle={editor}
            readOnly={!mayWrite}
            onChange={(next) => {
              text.current = next;
              setDirty(next !== base.source);
            }}
            onProblems={(found) => setBroken(found.some(({ severity }) => severity === 'error'))}
            onSave={submit}
          />
          {mayWrite ? (
            <div className="bar" style={{ marginTop: 12 }}>
              <Button onClick={submit} disabled={!dirty || broken} loading={save.isPending}>
                {deploysAtOnce ? 'Save and enforce' : 'Save draft'}
              </Button>
              <FormatButton editor={editor} text={() => text.current} disabled={broken} />
              <Text size="sm" c="dimmed" role="status" style={{ alignSelf: 'center' }}>
                {dirty ? (broken ? 'Not saved: the text has problems' : 'Not saved (Ctrl+S saves)') : 'Saved'}
              </Text>
            </div>
          ) : null}
        </div>
        <TryIt policyId={policy.id} text={() => text.current} goTo={(line) => editor.current?.goTo(line)} />
      </div>
      <ConfirmDialog
        opened={blocker.status === 'blocked'}
        onClose={() => blocker.reset?.()}
        title="Leave without saving?"
        action="Leave"
        onConfirm={async () => blocker.proceed?.()}
      >
        Your changes since version {base.version} will be lost.
      </ConfirmDialog>
    </>
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
      <div className="bar">
        {select(
          'from',
          from,
          (version) => void navigate({ search: (old) => ({ ...old, from: version }), replace: true }),
        )}
        {select('to', to, (version) => void navigate({ search: (old) => ({ ...old, to: version }), replace: true }))}
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
