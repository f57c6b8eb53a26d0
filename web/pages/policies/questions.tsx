import { Button, Group, NativeSelect, Stack, Text, TextInput } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { DecisionTag } from '../../ui/status.tsx';

export type Question = Answers['questions']['list']['questions'][number];
type Result = Answers['policies']['try'];

/**
 * Named requests kept by the tenant's authors: each can be asked again with one choice and shared by URL, and all can be asked at
 * once on the current text.
 */
export function Questions({
  policyId,
  text,
  asked,
  ask,
  show,
  request,
}: {
  policyId: string | undefined;
  text: () => string;
  /** The question named in the URL. */
  asked: string | undefined;
  /** Puts a question into the URL; undefined if the page does not support it. */
  ask: ((id: string | undefined) => void) | undefined;
  /** Fills the form with the question. */
  show: (request: Question['request']) => void;
  /** The form's request; undefined if incomplete. */
  request: () => Question['request'] | undefined;
}) {
  const query = useQuery(trpc.questions.list.queryOptions({}));
  const [chosen, setChosen] = useState(asked);
  const [name, setName] = useState<string>();
  const again = () => queryClient.invalidateQueries(trpc.questions.list.pathFilter());
  const choose = (id: string | undefined) => {
    setChosen(id);
    ask?.(id);
  };
  const save = useMutation(
    trpc.questions.save.mutationOptions({
      onSuccess: ({ id }) => {
        toastDone('Question saved');
        setName(undefined);
        choose(id);
      },
      onSettled: again,
    }),
  );
  const remove = useMutation(
    trpc.questions.delete.mutationOptions({ onSuccess: () => choose(undefined), onSettled: again }),
  );
  const questions = query.data?.questions ?? [];
  const current = questions.find(({ id }) => id === chosen);
  // the question named in the URL is shown once, when it is loaded
  const shown = useRef(false);
  useEffect(() => {
    if (shown.current || !current || current.id !== asked) return;
    shown.current = true;
    show(current.request);
  }, [current, asked, show]);
  return (
    <Stack gap="xs" mb="sm">
      {questions.length > 0 ? (
        <NativeSelect
          label="Saved questions"
          value={current?.id ?? ''}
          onChange={(event) => {
            const next = questions.find(({ id }) => id === event.currentTarget.value);
            shown.current = true;
            choose(next?.id);
            if (next) show(next.request);
          }}
          data={[{ value: '', label: 'choose' }, ...questions.map(({ id, name }) => ({ value: id, label: name }))]}
        />
      ) : null}
      {name === undefined ? (
        <Group gap="xs">
          <Button size="xs" variant="default" onClick={() => setName('')}>
            Save this question
          </Button>
          {current ? (
            <Button
              size="xs"
              variant="subtle"
              color="gray"
              loading={remove.isPending}
              onClick={() => remove.mutate({ id: current.id })}
            >
              Delete “{current.name}”
            </Button>
          ) : null}
          {current && ask ? <CopyButton text={window.location.href} label="Copy the address of this question" /> : null}
        </Group>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            const said = request();
            if (said) save.mutate({ name: name.trim(), request: said });
          }}
        >
          <Stack gap="xs">
            <TextInput
              label="Name of this question"
              description="All authors can read it, with its arguments, until somebody deletes it."
              value={name}
              maxLength={60}
              ref={(field) => field?.focus()}
              onChange={(event) => setName(event.currentTarget.value)}
            />
            <Group gap="xs">
              <Button size="xs" type="submit" variant="default" disabled={name.trim() === ''} loading={save.isPending}>
                Save
              </Button>
              <Button size="xs" variant="subtle" color="gray" onClick={() => setName(undefined)}>
                Cancel
              </Button>
            </Group>
          </Stack>
        </form>
      )}
      {questions.length > 0 ? <AskAll questions={questions} policyId={policyId} text={text} /> : null}
    </Stack>
  );
}

interface Answered {
  question: Question;
  result: Result;
}

/** Asks each question of the current text, and shows whether the live policies answer the same. */
function AskAll({
  questions,
  policyId,
  text,
}: {
  questions: readonly Question[];
  policyId: string | undefined;
  text: () => string;
}) {
  const all = useMutation({
    mutationFn: async (): Promise<Answered[]> => {
      // one text for all of them, whatever is typed in the meantime
      const dsl_source = text();
      const answered: Answered[] = [];
      for (const question of questions) {
        const { request } = question;
        const result = await api.policies.try.mutate({ ...(policyId && { id: policyId }), dsl_source, request });
        answered.push({ question, result });
        // a text with errors answers none of them
        if (!result.valid) break;
      }
      return answered;
    },
  });
  const broken = all.data?.find(({ result }) => !result.valid)?.result.errors[0];
  const changed =
    all.data?.filter(({ result: { live, verdict } }) => live && live.decision !== verdict?.decision) ?? [];
  return (
    <div>
      <Button size="xs" variant="default" loading={all.isPending} onClick={() => all.mutate()}>
        Ask {count(questions.length, 'saved question')}
      </Button>
      <div aria-live="polite">
        {broken ? (
          <Text size="sm" mt="xs">
            The text has errors. Line {broken.line}: {broken.message}
          </Text>
        ) : all.data ? (
          <>
            <Text size="sm" mt="xs">
              {changed.length === 0
                ? 'This text changes none of the answers.'
                : `This text changes ${count(changed.length, 'answer')}.`}
            </Text>
            <ul className="plain-list">
              {all.data.map(({ question, result: { verdict, live } }) => (
                <li key={question.id}>
                  <Hostile text={question.name} />:{' '}
                  {verdict ? <DecisionTag decision={verdict.decision} /> : 'no answer'}
                  {live && live.decision !== verdict?.decision ? (
                    <>
                      {' '}
                      instead of <DecisionTag decision={live.decision} />
                    </>
                  ) : null}
                </li>
              ))}
            </ul>
          </>
        ) : null}
      </div>
    </div>
  );
}
