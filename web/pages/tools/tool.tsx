import './tools.css';
import { Button, Group, Paper, Text, TextInput, Title } from '@mantine/core';
import { IconHandStop } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Navigate } from '@tanstack/react-router';
import { useState } from 'react';
import { exactly } from '../../../server/domain/sought.ts';
import type { ToolDefinition } from '../../../server/domain/tools.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { filled } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Activity } from '../../parts/activity.tsx';
import { LatestDecisions } from '../../parts/latest-decisions.tsx';
import { RulesInForce } from '../../parts/rules-in-force.tsx';
import { PreparedStop } from '../../parts/stops.tsx';
import { Broken } from '../../ui/broken.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { definitionText, Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading } from '../../ui/states.tsx';
import { Tag, type Tone } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Reasons, ToolTag } from './words.tsx';

const route = getRouteApi('/app/tools/tool');

type Tool = Answers['tools']['get'];

/** One tool: the approved definition next to the pending one, and the decision. */
export function ToolPage() {
  const { server, name } = route.useSearch();
  if (!name) return <Navigate to="/tools" replace />;
  return server ? <ToolDetail server={server} name={name} /> : <ToolsOfName name={name} key={name} />;
}

/** What was done with the tools of this name, on any server, or on none that the record names. */
function ToolsOfName({ name }: { name: string }) {
  const query = useQuery(trpc.tools.list.queryOptions({ q: name.slice(0, 100), limit: 200 }));
  const tools = query.data?.tools.filter((tool) => tool.name === name) ?? [];
  return (
    <Page
      title={<Hostile text={name} name />}
      tab="Tool"
      lead={
        tools.length === 0 ? (
          'A tool, on any server. No tool server has listed it.'
        ) : (
          <>
            A tool, on any server. Its definition:{' '}
            {tools.map(({ server }, n) => (
              <span key={server}>
                {n > 0 ? ', ' : ''}
                <PageLink to="/tools/tool" search={{ server, name }}>
                  on <Hostile text={server} name />
                </PageLink>
              </span>
            ))}
          </>
        )
      }
      docs={[['tools', 'About tools']]}
      actions={<StopTool name={name} />}
    >
      <Use name={name} />
    </Page>
  );
}

/** What was done with it, and what live policies say about it. */
function Use({ name, server }: { name: string; server?: string }) {
  const { last = '24h' } = route.useSearch();
  const navigate = route.useNavigate();
  const ofName = { tool_name: exactly(name) };
  const filter = { ...ofName, ...(server !== undefined && { tool_server: exactly(server) }) };
  return (
    <>
      <Activity
        title="What was done with it"
        filter={filter}
        facets={['agent_id', 'rule_id']}
        last={last}
        choose={(next) => void navigate({ search: (old) => ({ ...old, last: next }), resetScroll: false })}
      />
      <div className="halves" style={{ marginBottom: 16 }}>
        <Paper component="section" aria-labelledby="rules-title">
          <Title order={2} id="rules-title" mb="sm">
            Who may use it
          </Title>
          <RulesInForce
            of={{ tool_name: name, ...(server !== undefined && { tool_server: server }) }}
            nothing={
              server === undefined
                ? 'No live rule is for tools of this name on any server.'
                : 'No live rule is for it: every use of it is denied.'
            }
          />
          {server === undefined ? (
            <Text size="sm" c="dimmed" mt="xs">
              Rules for all tools of a server may permit it too: the page of its definition on that server has them.
            </Text>
          ) : null}
        </Paper>
        <LatestDecisions
          title="Last decisions"
          all="All decisions"
          filter={filter}
          most={6}
          name={({ agent_id }) => agent_id}
        />
      </div>
      {server === undefined ? null : (
        <Text size="sm" c="dimmed">
          Decisions that name another server, or none, are not counted here.{' '}
          <PageLink to="/tools/tool" search={{ name, last }}>
            What was done with tools of this name on any server
          </PageLink>
        </Text>
      )}
    </>
  );
}

function StopTool({ name }: { name: string }) {
  const me = useMe();
  const [opened, open] = useState(false);
  if (!me.has('approver')) return null;
  return (
    <>
      <Button color="red.8" leftSection={<IconHandStop size={16} aria-hidden />} onClick={() => open(true)}>
        Stop this tool…
      </Button>
      {opened ? <PreparedStop target={{ kind: 'tool', id: name }} onClose={() => open(false)} /> : null}
    </>
  );
}

function ToolDetail({ server, name }: { server: string; name: string }) {
  const query = useQuery(trpc.tools.get.queryOptions({ server, name }));
  // someone may have had it removed in the meantime
  const isGone = query.error && problemOf(query.error).code === 'NOT_FOUND';
  if (query.error && (isGone || !query.data)) return <Broken error={query.error} reset={() => void query.refetch()} />;
  if (!query.data) {
    return (
      <Page title="Tool">
        <Loading lines={10} />
      </Page>
    );
  }
  return <Shown tool={query.data} key={`${server} ${name}`} />;
}

function Shown({ tool }: { tool: Tool }) {
  const { server, name, approved, shown, change, same_arguments_as } = tool;
  const person = usePeople();
  /** The definition that this person is looking at: if another one arrives meanwhile, they do not decide on that one. */
  const [read] = useState(shown);
  const moved = shown && read && shown.pin !== read.pin;
  const before = definitionText(approved?.definition as ToolDefinition | undefined);
  const after = definitionText((read?.definition ?? approved?.definition) as ToolDefinition | undefined);
  const decided = tool.definitions.find(({ pin }) => pin === read?.pin)?.standing;
  return (
    <Page
      title={
        <>
          <Hostile text={name} name /> <ToolTag status={tool.status} />
        </>
      }
      tab="Tool"
      lead={
        <>
          of the server <Hostile text={server} name />
          {tool.owner_id === null ? ', which has no owner' : `, which ${person(tool.owner_id)} answers for`}.{' '}
          <PageLink to="/tools" search={{ server }}>
            Its tools
          </PageLink>
        </>
      }
      docs={[['tools', 'About tools']]}
      actions={
        <>
          <ButtonLink to="/policies/new" search={{ server, tool: name }} variant="default">
            Draft a rule for it
          </ButtonLink>
          {tool.proposals.remove ? null : <Forget tool={tool} label="Forget" />}
          <StopTool name={name} />
        </>
      }
    >
      {tool.proposals.remove ? <Forgetting tool={tool} proposal={tool.proposals.remove} /> : null}
      {moved ? (
        <Notice tone="wait" title="The definition changed again while you were reading" urgent>
          You can no longer decide on this one.{' '}
          <Button size="compact-xs" onClick={() => window.location.reload()}>
            Read the newest
          </Button>
        </Notice>
      ) : null}
      {read && decided === 'undecided' && approved ? (
        <Notice
          tone={change.kind === 'introduced' ? 'bad' : 'wait'}
          title={
            change.kind === 'introduced'
              ? 'This is not the tool that was approved'
              : 'Only the wording of the tool changed since it was approved'
          }
        >
          <Reasons change={read.change} />
        </Notice>
      ) : null}
      {read && decided === 'undecided' && !approved ? (
        <Notice tone="wait" title="Nobody has reviewed this tool">
          Policies may permit it by its name or its server all the same. Read what it says about itself.
          {read.change.reasons.length > 0 ? <Reasons change={read.change} /> : null}
        </Notice>
      ) : null}
      {same_arguments_as.length > 0 ? (
        <Notice tone="wait" title="Another tool of the server has arguments of the same form">
          {same_arguments_as.map((twin) => (
            <span key={twin} style={{ marginRight: 8 }}>
              <PageLink to="/tools/tool" search={{ server, name: twin }}>
                <Hostile text={twin} name />
              </PageLink>
            </span>
          ))}
          A renamed tool looks like this.
        </Notice>
      ) : null}
      <Paper mb="md" component="section" aria-labelledby="definition">
        <Title order={2} id="definition" size="h3" mb="xs">
          {approved ? (read ? 'Approved, and now' : 'Approved definition') : 'Definition'}
        </Title>
        <Text size="sm" c="dimmed" mb="xs">
          In the words of the tool server. Characters that cannot be seen are shown with their codes.
        </Text>
        {approved && read ? (
          <Diff before={before} after={after} label="approved → now" plain />
        ) : (
          <CodeBlock text={after} label="text of the definition" wrap maxHeight={480} />
        )}
        {approved ? (
          <Text size="sm" c="dimmed" mt="xs">
            Approved by {person(approved.by ?? '')}, {approved.at ? <When at={approved.at} /> : null}
          </Text>
        ) : null}
      </Paper>
      <div className="tool-halves">
        <div>
          <Decide tool={tool} read={read} moved={Boolean(moved)} />
          <Labels tool={tool} />
        </div>
        <Definitions tool={tool} />
      </div>
      <div style={{ marginTop: 16 }}>
        <Use name={name} server={server} />
      </div>
    </Page>
  );
}

const again = () => queryClient.invalidateQueries(trpc.tools.pathFilter());

/** An approved tool that its server still lists cannot be forgotten. */
const isForgettable = ({ approved_pin, status }: Tool) => approved_pin === null || status === 'gone';

/** A request to forget a tool, which another person must confirm. */
function Forgetting({ tool, proposal }: { tool: Tool; proposal: NonNullable<Tool['proposals']['remove']> }) {
  const me = useMe();
  const name = usePeople();
  const own = proposal.by === me.id;
  return (
    <Notice tone="wait" title="Waiting for a second person to forget this tool">
      <strong>{own ? 'You' : name(proposal.by)}</strong> asked, <When at={proposal.at} />.{' '}
      {isForgettable(tool)
        ? 'Nothing changes until another admin confirms it.'
        : 'Its server lists it again, and it is approved: it stays.'}{' '}
      Any other decision about the tool ends the request.
      {own && tool.second_person_needed ? null : (
        <div style={{ marginTop: 8 }}>
          <Forget tool={tool} label="Confirm and forget it" />
        </div>
      )}
    </Notice>
  );
}

function Forget({ tool, label }: { tool: Tool; label: string }) {
  const me = useMe();
  const navigate = route.useNavigate();
  const [opened, open] = useState(false);
  const { server, name, labels, proposals, second_person_needed } = tool;
  const rejected = tool.definitions.filter(({ standing }) => standing === 'rejected').length;
  const waits = second_person_needed && !proposals.remove && (labels.length > 0 || rejected > 0);
  if (!me.has('admin') || !isForgettable(tool)) return null;
  return (
    <>
      <Button variant="default" onClick={() => open(true)}>
        {label}
      </Button>
      <ConfirmDialog
        opened={opened}
        onClose={() => open(false)}
        title={`Forget ${name}`}
        action={waits ? 'Ask a second person' : 'Forget the tool'}
        danger={!waits}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          const { removed } = await confirmed(() => api.tools.remove.mutate({ server, name, reason }));
          toastDone(removed ? 'Tool forgotten' : 'Waiting for a second person');
          if (removed) await navigate({ to: '/tools', search: {} });
          await again();
        }}
      >
        {labels.length > 0 ? `Its labels (${labels.join(', ')}) are forgotten. ` : null}
        {rejected > 0
          ? `${count(rejected, 'rejected definition')} of it ${rejected === 1 ? 'is' : 'are'} forgotten, and no longer denied. `
          : null}
        When its server lists it again, it is a new tool that nobody has reviewed.
        {waits ? ' Another admin must confirm this.' : null}
      </ConfirmDialog>
    </>
  );
}

function Decide({ tool, read, moved }: { tool: Tool; read: Tool['shown']; moved: boolean }) {
  const me = useMe();
  const name = usePeople();
  const [opened, open] = useState<'approve' | 'reject'>();
  const { server, name: tool_name, proposals, second_person_needed } = tool;
  const pin = read?.pin ?? tool.approved?.pin;
  const own = proposals.approve?.by === me.id && proposals.approve.what.pin === pin;
  const standing = tool.definitions.find((one) => one.pin === pin)?.standing;
  if (!pin) return null;
  const decide = (verdict: 'approve' | 'reject') => async (words: string) => {
    const id = { server, name: tool_name, pin };
    const after = await confirmed(() =>
      verdict === 'approve'
        ? api.tools.approve.mutate({ ...id, comment: filled(words) })
        : api.tools.reject.mutate({ ...id, reason: words }),
    );
    await again();
    toastDone(
      verdict === 'reject' ? 'Rejected' : after.approved?.pin === pin ? 'Approved' : 'Waiting for a second person',
    );
  };
  return (
    <Paper component="section" aria-labelledby="decision" mb="md">
      <Title order={2} id="decision" size="h3" mb="xs">
        Decision
      </Title>
      {second_person_needed ? (
        <Text size="sm" mb="xs">
          An approval takes two people.{' '}
          {proposals.approve ? (
            <>
              <strong>{name(proposals.approve.by)}</strong> approved{' '}
              {proposals.approve.what.pin === pin ? 'this definition' : 'another definition'},{' '}
              <When at={proposals.approve.at} />. {own ? 'Another person must do so too.' : null}
            </>
          ) : null}
        </Text>
      ) : null}
      {me.has('approver') ? (
        <Group gap="xs">
          {standing === 'approved' ? null : (
            <Button onClick={() => open('approve')} disabled={moved || own}>
              Approve
            </Button>
          )}
          {standing === 'rejected' ? null : (
            <Button variant="default" onClick={() => open('reject')} disabled={moved}>
              {standing === 'approved' ? 'Withdraw the approval' : 'Reject'}
            </Button>
          )}
        </Group>
      ) : (
        <Text size="sm" c="dimmed">
          Approvers decide.
        </Text>
      )}
      <ConfirmDialog
        opened={opened === 'approve'}
        onClose={() => open(undefined)}
        title="Approve this definition"
        action="Approve"
        danger={false}
        reason={{ label: 'Comment', comment: true }}
        onConfirm={decide('approve')}
      >
        Calls of exactly this definition are decided by policies alone. What was approved before is not approved any
        more.
        <div className="mono dim">{pin.slice(0, 23)}…</div>
      </ConfirmDialog>
      <ConfirmDialog
        opened={opened === 'reject'}
        onClose={() => open(undefined)}
        title="Reject this definition"
        action="Reject"
        reason={{ label: 'Reason', required: true }}
        onConfirm={decide('reject')}
      >
        Calls of it are denied, whatever policies say.
      </ConfirmDialog>
    </Paper>
  );
}

function Labels({ tool }: { tool: Tool }) {
  const me = useMe();
  const name = usePeople();
  const { server, name: tool_name, proposals } = tool;
  const [text, setText] = useState((proposals.labels?.what.labels ?? tool.labels).join(', '));
  const labels = text.split(/[\s,]+/).filter(Boolean);
  const [busy, setBusy] = useState(false);
  const proposed = tool.proposed_labels.filter((label) => !labels.includes(label));
  const changed = JSON.stringify([...labels].sort()) !== JSON.stringify(tool.labels);
  const save = async () => {
    setBusy(true);
    try {
      const after = await confirmed(() => api.tools.label.mutate({ server, name: tool_name, labels }));
      await again();
      toastDone(after.proposals.labels ? 'Waiting for a second person' : 'Labels saved');
    } catch {
      // the error was already shown
    } finally {
      setBusy(false);
    }
  };
  return (
    <Paper component="section" aria-labelledby="labels">
      <Title order={2} id="labels" size="h3" mb="xs">
        Labels
      </Title>
      <Text size="sm" c="dimmed" mb="xs">
        Policies read them as resource.labels. Only people set them.
      </Text>
      {proposals.labels ? (
        <Text size="sm" mb="xs">
          <strong>{name(proposals.labels.by)}</strong> proposed {proposals.labels.what.labels.join(', ') || 'no labels'}
          ; a second person sets the same.
        </Text>
      ) : null}
      {me.has('approver') ? (
        <>
          <TextInput
            label="Labels, separated by commas"
            value={text}
            onChange={(event) => setText(event.currentTarget.value)}
            spellCheck={false}
          />
          {proposed.length > 0 ? (
            <Group gap={6} mt="xs">
              <Text size="sm" c="dimmed">
                The tool’s own annotations suggest:
              </Text>
              {proposed.map((label) => (
                <Button
                  key={label}
                  size="compact-xs"
                  variant="default"
                  onClick={() => setText([...labels, label].join(', '))}
                >
                  Add {label}
                </Button>
              ))}
            </Group>
          ) : null}
          <Button mt="xs" size="xs" onClick={() => void save()} disabled={!changed} loading={busy}>
            Save the labels
          </Button>
        </>
      ) : (
        <Text>{tool.labels.join(', ') || 'none'}</Text>
      )}
    </Paper>
  );
}

const STANDING: Record<Tool['definitions'][number]['standing'], [word: string, tone: Tone]> = {
  approved: ['approved', 'ok'],
  accepted: ['only reworded', 'ok'],
  rejected: ['rejected', 'bad'],
  undecided: ['not decided', 'wait'],
};

function Definitions({ tool }: { tool: Tool }) {
  return (
    <Paper component="section" aria-labelledby="definitions">
      <Title order={2} id="definitions" size="h3" mb="xs">
        Definitions seen
      </Title>
      <ul className="plain-list">
        {tool.definitions.map(({ pin, standing, first_seen }) => (
          <li key={pin} style={{ marginBottom: 8 }}>
            <Tag tone={STANDING[standing][1]}>{STANDING[standing][0]}</Tag>{' '}
            <span className="dim">
              since <When at={first_seen} />
              {pin === tool.pin ? ', the latest' : ''}
            </span>
            <div>
              <Id value={pin} length={24} />
            </div>
          </li>
        ))}
      </ul>
    </Paper>
  );
}
