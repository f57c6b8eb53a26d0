import { Button, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type ComponentProps, type ReactNode, type RefObject, useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import type { EditorHandle } from '../../ui/editor/code-editor.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { Editor } from '../../ui/editor/editor.tsx';
import { AskBeforeLeaving } from '../../ui/leave.tsx';
import { Notice } from '../../ui/notice.tsx';

export type PolicyDetail = Answers['policies']['get'];
type Saved = Answers['policies']['update'];

/** What a page needs from the draft besides its editor. */
export interface DraftTools {
  editor: RefObject<EditorHandle | null>;
  /** The current text in the editor. */
  text: () => string;
}

/**
 * One part of a policy in an editor, either its text or its tests: kept until it is saved as a new version, guarded against
 * leaving, and compared with a newer version if someone else saves one in the meantime.
 */
export function Draft({
  policy,
  part,
  broken,
  editor: look,
  buttons,
  below,
  beside,
  drafted,
}: {
  policy: PolicyDetail;
  part: 'text' | 'tests';
  /** The draft has errors that prevent it from being saved. */
  broken: boolean;
  editor: Pick<ComponentProps<typeof Editor>, 'suite' | 'marks' | 'onProblems'>;
  buttons: (tools: DraftTools) => ReactNode;
  below?: (tools: DraftTools) => ReactNode;
  beside: (tools: DraftTools) => ReactNode;
  /** What the editor opens with instead of the saved text, and the line to start at. */
  drafted?: { source: string; line: number } | undefined;
}) {
  const me = useMe();
  const tests = part === 'tests';
  const sourceOf = (one: Pick<PolicyDetail, 'dsl_source' | 'tests_source'>) =>
    tests ? (one.tests_source ?? '') : one.dsl_source;
  const stored = sourceOf(policy);
  const editor = useRef<EditorHandle>(null);
  const text = useRef(drafted?.source ?? stored);
  /** The version that the editor was opened with, which may no longer be the newest. */
  const [base, setBase] = useState({ version: policy.version, source: stored });
  const [dirty, setDirty] = useState(drafted !== undefined);
  /** The text at the time when its changes were requested. */
  const [compared, compare] = useState<string>();
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const save = useMutation(
    trpc.policies.update.mutationOptions({
      onSuccess: (next: Saved) => {
        setBase({ version: next.version, source: sourceOf(next) });
        setDirty(sourceOf(next) !== text.current);
        const enforced = next.live_version === next.version;
        const words = enforced ? 'It is enforced.' : 'It is a draft: submit it for review.';
        toastDone(`Version ${next.version} saved`, tests ? `It has the same text, with these tests. ${words}` : words);
      },
    }),
  );
  const mayWrite = me.has('author');
  const submit = () => {
    if (!dirty || broken || save.isPending) return;
    const suite = text.current.trim() === '' ? null : text.current;
    save.mutate({
      id: policy.id,
      ...(tests ? { dsl_source: policy.dsl_source, tests_source: suite } : { dsl_source: text.current }),
    });
  };
  const deploysAtOnce = policy.status === 'deployed' && settings.data?.approval_required === false;
  const noun = tests ? 'the tests of version' : 'version';
  const tools: DraftTools = { editor, text: () => text.current };

  return (
    <>
      {policy.version !== base.version && stored !== base.source ? (
        <Notice
          tone="wait"
          title={tests ? `Version ${policy.version} has other tests` : `Version ${policy.version} is newer`}
        >
          You are editing {noun} {base.version}.{' '}
          {tests ? 'Saving replaces the newer ones.' : `Saving creates a version after ${policy.version}.`}{' '}
          <Button
            size="compact-xs"
            variant="default"
            onClick={() => {
              editor.current?.replace(stored);
              setBase({ version: policy.version, source: stored });
              setDirty(false);
            }}
          >
            Load {noun} {policy.version}
          </Button>
        </Notice>
      ) : null}
      <div className="bench">
        <div>
          <Editor
            {...look}
            initial={drafted?.source ?? base.source}
            {...(drafted && { startAt: drafted.line })}
            policyId={policy.id}
            handle={editor}
            readOnly={!mayWrite}
            onChange={(next) => {
              text.current = next;
              setDirty(next !== base.source);
            }}
            onSave={submit}
          />
          {mayWrite ? (
            <div className="bar" style={{ marginTop: 12 }}>
              <Button onClick={submit} disabled={!dirty || broken} loading={save.isPending}>
                {deploysAtOnce ? 'Save and enforce' : 'Save draft'}
              </Button>
              {buttons(tools)}
              <Button variant="default" disabled={!dirty} onClick={() => compare(text.current)}>
                Show changes
              </Button>
              <Text size="sm" c="dimmed" role="status" style={{ alignSelf: 'center' }}>
                {dirty
                  ? broken
                    ? `Not saved: the ${part} ${tests ? 'have' : 'has'} problems`
                    : 'Not saved (Ctrl+S saves)'
                  : 'Saved'}
              </Text>
            </div>
          ) : null}
          {below?.(tools)}
        </div>
        {beside(tools)}
      </div>
      <ConfirmDialog
        opened={compared !== undefined}
        onClose={() => compare(undefined)}
        title="Changes that are not saved"
        action={deploysAtOnce ? 'Save and enforce' : 'Save draft'}
        danger={false}
        size="xl"
        onConfirm={async () => submit()}
      >
        {compared === undefined ? null : (
          <>
            {broken ? <Notice tone="bad" title="It has problems, with which it cannot be saved" /> : null}
            <Diff
              before={base.source}
              after={compared}
              label={`${noun} ${base.version} → what you wrote`}
              plain={tests}
            />
          </>
        )}
      </ConfirmDialog>
      <AskBeforeLeaving
        dirty={() => dirty}
        // the saved question next to the draft can change without leaving it
        leaves={(from, to) => from.pathname !== to.pathname || tabOf(from.search) !== tabOf(to.search)}
      >
        Your changes since version {base.version} will be lost.
      </AskBeforeLeaving>
    </>
  );
}

const tabOf = (search: object) => ('tab' in search ? search.tab : undefined) ?? 'text';
