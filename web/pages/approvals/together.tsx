import { Button, Group, Modal, Stack, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { SPANS } from '../../lib/aside.ts';
import { toastDone } from '../../lib/errors.tsx';
import { problemOf } from '../../lib/problem.ts';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count, money } from '../../lib/words.ts';
import { ActionTarget, ActionTitle } from '../../parts/action.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Shown } from '../../ui/states.tsx';
import { type Marked, MOST_TOGETHER, NONE, toggled } from './marked.ts';

type Hold = Answers['escrow']['list']['holds'][number];
type Rejectable = Answers['escrow']['rejectable']['holds'][number];
type Action = Pick<Rejectable, 'id' | 'estimated_value' | 'value_currency'> &
  Parameters<typeof ActionTitle>[0]['action'] &
  Parameters<typeof ActionTarget>[0]['action'];

/**
 * The selected rows of a list. A different list starts with none, and rows that leave the list are deselected.
 * INVARIANT: nothing gets selected by itself. A hold that arrives while someone selects is not included.
 */
export function useMarked(list: string, rows: readonly string[]) {
  const [state, setState] = useState({ list, marked: NONE });
  const marked = state.list === list ? state.marked : NONE;
  const ids = rows.filter((id) => marked.ids.has(id));
  const set = (next: Marked) => setState({ list, marked: next });
  return {
    ids,
    has: (id: string) => marked.ids.has(id),
    toggle: (id: string, range = false) => set(toggled(marked, rows, id, range)),
    all: () => set({ ids: new Set(rows.slice(0, MOST_TOGETHER)), anchor: undefined }),
    add: (some: readonly string[]) =>
      set({ ids: new Set([...ids, ...some].slice(0, MOST_TOGETHER)), anchor: some.at(-1) }),
    clear: () => set(NONE),
  };
}

/** What was not done, and why. */
interface Failure {
  hold: Action;
  why: string;
}

/** Does the same with each of several holds, one after another. Resolves to the ones that failed. */
async function withEach<H extends Action>(
  holds: readonly H[],
  work: (hold: H) => Promise<unknown>,
): Promise<Failure[]> {
  const failed: Failure[] = [];
  for (const hold of holds) {
    try {
      await work(hold);
    } catch (error) {
      const { title, detail } = problemOf(error);
      failed.push({ hold, why: detail ?? title });
    }
  }
  await queryClient.invalidateQueries(trpc.escrow.pathFilter());
  return failed;
}

/** What can be done with the selected holds together. Approving is not included: an approver must have read that one action. */
export function Together({
  holds,
  all,
  selectAll,
  clear,
  aside,
}: {
  holds: readonly Hold[];
  /** How many can be selected. */
  all: number;
  selectAll: () => void;
  clear: () => void;
  /** Whether the list shows the holds that the person set aside. */
  aside: boolean;
}) {
  const [rejecting, setRejecting] = useState<string>();
  const [failed, setFailed] = useState<{ title: string; failures: Failure[] }>();
  const [busy, setBusy] = useState(false);
  const done = (title: string, number: number, failures: Failure[]) => {
    if (number > failures.length) toastDone(`${title}: ${count(number - failures.length, 'hold')}`);
    if (failures.length > 0) setFailed({ title, failures });
    clear();
  };
  const move = async () => {
    setBusy(true);
    const failures = await withEach(holds, ({ id, shown_hash }) =>
      aside
        ? api.escrow.putBack.mutate({ id })
        : api.escrow.setAside.mutate({
            id,
            until: new Date(SPANS.hour(Date.now())).toISOString(),
            ...(shown_hash !== undefined && { shown_hash }),
          }),
    ).finally(() => setBusy(false));
    done(aside ? 'Put back' : 'Set aside', holds.length, failures);
  };
  return (
    <>
      {holds.length === 0 ? null : (
        <Group gap="xs" mb="xs" role="group" aria-label="Selected holds" className="triage-together">
          <Text size="sm" fw={600} role="status">
            {holds.length} selected
          </Text>
          <Button size="compact-sm" color="red.8" onClick={() => setRejecting(holds.map(({ id }) => id).join(','))}>
            Reject together…
          </Button>
          <Button size="compact-sm" variant="default" loading={busy} onClick={() => void move()}>
            {aside ? 'Put back' : 'Set aside for an hour'}
          </Button>
          {holds.length < Math.min(all, MOST_TOGETHER) ? (
            <Button size="compact-sm" variant="subtle" onClick={selectAll}>
              Select {all > MOST_TOGETHER ? `the first ${MOST_TOGETHER}` : `all ${all}`}
            </Button>
          ) : null}
          <Button size="compact-sm" variant="subtle" color="gray" onClick={clear}>
            Clear
          </Button>
        </Group>
      )}
      <RejectDialog ids={rejecting} onClose={() => setRejecting(undefined)} done={done} />
      <Modal
        opened={failed !== undefined}
        onClose={() => setFailed(undefined)}
        title={<strong>Not everything was done</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        <Text mb="xs">{failed?.title}: failed for these, which are as they were.</Text>
        <HoldLines holds={failed?.failures.map(({ hold, why }) => ({ ...hold, why })) ?? []} />
      </Modal>
    </>
  );
}

/** Lists what will be rejected, according to the server, and asks for one reason. Each hold gets its own vote. */
function RejectDialog({
  ids,
  onClose,
  done,
}: {
  ids: string | undefined;
  onClose: () => void;
  done: (title: string, number: number, failures: Failure[]) => void;
}) {
  // fetched once: what is confirmed is what is listed
  const query = useQuery(
    trpc.escrow.rejectable.queryOptions(
      { ids: ids ?? '' },
      { enabled: ids !== undefined, staleTime: Number.POSITIVE_INFINITY, gcTime: 0, refetchOnWindowFocus: false },
    ),
  );
  const holds = query.data?.holds ?? [];
  const ends = holds.filter(({ refusal }) => refusal === null);
  const stays = holds.flatMap((hold) => (hold.refusal ? [{ ...hold, why: hold.refusal.detail }] : []));
  return (
    <ConfirmDialog
      opened={ids !== undefined}
      onClose={onClose}
      title="Reject these actions?"
      action={ends.length > 0 ? `Reject ${ends.length}` : 'Reject'}
      size="lg"
      reason={{
        label: 'Reason for all of them',
        required: true,
        comment: true,
        description: 'Everyone who views one of these holds can read it, including auditors.',
      }}
      onConfirm={async (reason) => {
        if (ends.length === 0) return onClose();
        const failures = await withEach(ends, ({ id, shown_hash }) =>
          api.escrow.vote.mutate({ id, decision: 'reject', reason, shown_hash }),
        );
        done('Rejected', ends.length, failures);
      }}
    >
      <Shown query={query} lines={4}>
        {() => (
          <Stack gap="sm">
            <div>
              {ends.length === 0
                ? 'None of them can be rejected by you.'
                : `Your vote ends ${ends.length === 1 ? 'this hold' : `each of these ${ends.length} holds`}: the action is not executed. Votes cannot be taken back.`}
            </div>
            <HoldLines holds={ends} />
            {stays.length > 0 ? (
              <Notice
                tone="wait"
                title={`${count(stays.length, 'hold')} will stay as ${stays.length === 1 ? 'it is' : 'they are'}`}
              >
                <HoldLines holds={stays} />
              </Notice>
            ) : null}
          </Stack>
        )}
      </Shown>
    </ConfirmDialog>
  );
}

function HoldLines({ holds }: { holds: readonly (Action & { why?: string })[] }) {
  if (holds.length === 0) return null;
  return (
    <ul className="together-lines">
      {holds.map((hold) => (
        <li key={hold.id}>
          <strong>
            <ActionTitle action={hold} />
          </strong>
          <ActionTarget action={hold} />
          {hold.estimated_value === null ? null : (
            <div className="dim one-line">
              <Hostile text={money(hold.estimated_value, hold.value_currency)} />
            </div>
          )}
          {hold.why === undefined ? null : <div>{hold.why}</div>}
        </li>
      ))}
    </ul>
  );
}
