import { Anchor, Button, Group, NativeSelect, Paper, Stack, Text, Textarea, TextInput, Title } from '@mantine/core';
import { IconPlayerPlay } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { ACTION_TYPES } from '../../../server/domain/policy.ts';
import { useServerForm } from '../../lib/form.ts';
import { type HandedRequest, requestFor, requestTaken } from '../../lib/handed-request.ts';
import { useMe } from '../../lib/session.ts';
import { duration } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { Sentence } from '../../ui/hostile.tsx';
import { NameInput } from '../../ui/name-input.tsx';
import { Notice } from '../../ui/notice.tsx';
import { DecisionTag, Tag } from '../../ui/status.tsx';
import { Questions } from './questions.tsx';
import { ToolArguments } from './tool-arguments.tsx';
import { type Question, TraceView, type Tried, useTrace } from './trace.tsx';

type Result = Tried;
type Verdict = NonNullable<Result['verdict']>;

type Form = {
  agent_id: string;
  agent_role: string;
  action_type: string;
  tool_name: string;
  tool_server: string;
  method: string;
  resource: string;
  estimated_value: string;
  value_currency: string;
  risk_score: string;
  arguments: string;
  context: string;
  session: string;
  /** From the request that the form was filled with; they have no input fields. */
  session_id: string;
  tool_pin: string;
};

const EMPTY: Form = {
  agent_id: 'agent-1',
  agent_role: '',
  action_type: 'tool_call',
  tool_name: '',
  tool_server: '',
  method: '',
  resource: '',
  estimated_value: '',
  value_currency: '',
  risk_score: '',
  arguments: '{\n  "amount": 20\n}',
  context: '',
  session: '',
  session_id: '',
  tool_pin: '',
};
/** The fields that are JSON objects. */
const OBJECTS = ['arguments', 'context', 'session'] as const;
/** The fields that are folded away. */
const MORE = ['tool_server', 'method', 'resource', 'estimated_value', 'risk_score', 'context', 'session'] as const;

/** Throws an error with a readable message if the text is not a JSON object. */
function objectOf(text: string): Record<string, unknown> {
  if (text.trim() === '') return {};
  const value: unknown = JSON.parse(text);
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('must be a JSON object');
  return value as Record<string, unknown>;
}

/** The request in a form, whose objects are JSON. */
function requestOf(values: Form): Question['request'] {
  const { agent_id, agent_role, action_type, tool_name, estimated_value, risk_score } = values;
  const texts = (['tool_server', 'method', 'resource', 'value_currency', 'session_id', 'tool_pin'] as const).flatMap(
    (name) => (values[name] ? [[name, values[name]]] : []),
  );
  return {
    ...{ agent_id, agent_role, action_type, tool_name, arguments: objectOf(values.arguments) },
    ...Object.fromEntries(texts),
    ...(values.context.trim() && { context: objectOf(values.context) }),
    ...(values.session.trim() && { session: objectOf(values.session) }),
    ...(estimated_value && { estimated_value: Number(estimated_value) }),
    ...(risk_score && { risk_score: Number(risk_score) }),
  };
}

/** The form's values for a request. */
function formOf(request: HandedRequest): Partial<Form> {
  const texts = Object.keys(EMPTY).flatMap((name) => {
    const value = request[name];
    if (typeof value === 'string' || typeof value === 'number') return [[name, String(value)]];
    return typeof value === 'object' && value !== null ? [[name, JSON.stringify(value, null, 2)]] : [];
  });
  return { arguments: '{}', ...Object.fromEntries(texts) };
}

const and = (...parts: string[]) => parts.filter(Boolean).join(' and ');

const JSON_FIELD = {
  autosize: true,
  minRows: 2,
  maxRows: 12,
  styles: { input: { fontFamily: 'var(--mantine-font-family-monospace)', fontSize: '0.8125rem' } },
  spellCheck: false,
};

/** Tries a request against the text: the decision and the rule behind it. Nothing is recorded. */
export function TryIt({
  policyId,
  text,
  example,
  goTo,
  asked,
  ask,
}: {
  policyId?: string;
  /** The saved question named in the URL. */
  asked?: string | undefined;
  /** Puts a question into the URL. */
  ask?: (id: string | undefined) => void;
  /** The current text, read when the request is tried. */
  text: () => string;
  example?: { agent_role: string; tool_name: string; arguments: Record<string, unknown> };
  goTo: (line: number) => void;
}) {
  const key = `svc-try-${policyId ?? 'new'}`;
  const [initialValues] = useState<Form>(() => {
    const given = example && { ...example, arguments: JSON.stringify(example.arguments, null, 2) };
    const handed = requestFor(policyId);
    if (handed) return { ...EMPTY, ...formOf(handed) };
    return { ...EMPTY, ...(JSON.parse(localStorage.getItem(key) ?? '{}') as Partial<Form>), ...given };
  });
  useEffect(requestTaken, []);
  const form = useServerForm<Form>({
    initialValues,
    validate: Object.fromEntries(
      OBJECTS.map((name) => [
        name,
        (text: string) => {
          try {
            objectOf(text);
            return null;
          } catch (error) {
            return `This is not a JSON object: ${(error as Error).message}`;
          }
        },
      ]),
    ),
  });
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const own = settings.data?.action_types;
  const types = [...ACTION_TYPES.write, ...(own?.write ?? []), ...ACTION_TYPES.read, ...(own?.read ?? [])];

  const me = useMe();
  const question = (values: Form): Question => ({
    ...(policyId && { id: policyId }),
    ...{ dsl_source: text(), request: requestOf(values), trace: true },
  });
  const { tried, ask: tryNow } = useTrace(() => {
    const values = form.getValues();
    if (!values.agent_id || !values.agent_role || !values.tool_name) return undefined;
    try {
      return question(values);
    } catch {
      // the field says what is wrong with it
      return undefined;
    }
  });
  const attempt = useMutation({ mutationFn: tryNow });
  const run = (values: Form) => {
    localStorage.setItem(key, JSON.stringify(values));
    attempt.mutate(question(values));
  };

  return (
    <Paper component="section" aria-labelledby="try-title">
      <Title order={2} id="try-title">
        Try it
      </Title>
      <Text size="sm" c="dimmed" mb="sm">
        Evaluates this text together with all live policies, again whenever you change something. Nothing is recorded.
      </Text>
      {me.has('author') ? (
        <Questions
          policyId={policyId}
          text={text}
          asked={asked}
          ask={ask}
          show={(request) => form.setValues({ ...EMPTY, ...formOf(request) })}
          request={() => (form.validate().hasErrors ? undefined : requestOf(form.getValues()))}
        />
      ) : null}
      <form onSubmit={form.onSubmit(run)}>
        <Stack gap="xs">
          <Group grow gap="xs">
            <NameInput kind="agent" label="Agent" required {...form.getInputProps('agent_id')} />
            <NameInput kind="role" label="Agent role" required {...form.getInputProps('agent_role')} />
          </Group>
          <Group grow gap="xs">
            <NameInput kind="tool" label="Tool" required {...form.getInputProps('tool_name')} />
            <NativeSelect label="Action type" data={types} {...form.getInputProps('action_type')} />
          </Group>
          <Textarea {...JSON_FIELD} label="Arguments (JSON)" minRows={3} {...form.getInputProps('arguments')} />
          <ToolArguments tool={form.values.tool_name} fill={(text) => form.setFieldValue('arguments', text)} />
          <details open={MORE.some((name) => form.values[name] !== '') || undefined}>
            <summary>More fields</summary>
            <Stack gap="xs" mt="xs">
              <NameInput kind="tool_server" label="Tool server" {...form.getInputProps('tool_server')} />
              <Group grow gap="xs">
                <TextInput label="Method" placeholder="POST" {...form.getInputProps('method')} />
                <TextInput label="Resource" placeholder="https://… or /path" {...form.getInputProps('resource')} />
              </Group>
              <Group grow gap="xs">
                <TextInput label="Value" inputMode="decimal" {...form.getInputProps('estimated_value')} />
                <TextInput label="Currency" placeholder="EUR" {...form.getInputProps('value_currency')} />
                <TextInput
                  label="Risk, 0 to 1"
                  placeholder="1"
                  inputMode="decimal"
                  {...form.getInputProps('risk_score')}
                />
              </Group>
              <Textarea
                {...JSON_FIELD}
                label="Context (JSON)"
                description="What the caller says beside the arguments"
                {...form.getInputProps('context')}
              />
              <Textarea
                {...JSON_FIELD}
                label="Session (JSON)"
                description="What is known of the session before this call, such as its facts and calls"
                placeholder='{ "call_count": 3, "called": ["read_customer"] }'
                {...form.getInputProps('session')}
              />
            </Stack>
          </details>
          {form.values.session_id || form.values.tool_pin ? (
            <Text size="sm" c="dimmed">
              With the {and(form.values.session_id && 'session id', form.values.tool_pin && 'tool definition')} of the
              request that filled this form.{' '}
              <Button
                size="compact-xs"
                variant="default"
                onClick={() => form.setValues({ session_id: '', tool_pin: '' })}
              >
                Leave out
              </Button>
            </Text>
          ) : null}
          <Button type="submit" leftSection={<IconPlayerPlay size={16} />} loading={attempt.isPending}>
            Try this request
          </Button>
        </Stack>
      </form>
      <div aria-live="polite">{tried ? <Outcome result={tried} goTo={goTo} /> : null}</div>
      {tried?.trace ? <TraceView trace={tried.trace} goTo={goTo} /> : null}
    </Paper>
  );
}

function Outcome({ result, goTo }: { result: Result; goTo: (line: number) => void }) {
  const { verdict, live, hits, errors, detail } = result;
  if (!verdict) {
    return (
      <div style={{ marginTop: 12 }}>
        <Notice tone="bad" title="The text has errors">
          Line {errors[0]?.line}: <Sentence text={errors[0]?.message ?? ''} />
        </Notice>
      </div>
    );
  }
  return (
    <Stack gap={6} mt="md">
      <Group gap="xs">
        <DecisionTag decision={verdict.decision} />
        <Text fw={600}>{sentence(verdict)}</Text>
      </Group>
      {detail ? <Text size="sm">The request could not be evaluated: {detail}.</Text> : null}
      <dl className="facts">
        <dt>Decided by</dt>
        <dd>
          {verdict.rule_id ? (
            <Rule hit={hits.find((hit) => hit.rule_id === verdict.rule_id)} id={verdict.rule_id} goTo={goTo} />
          ) : (
            'no rule permits it'
          )}
        </dd>
        {hits.length > 1 ? (
          <>
            <dt>All matching rules</dt>
            <dd>
              {hits.map((hit) => (
                <div key={hit.rule_id}>
                  <Rule hit={hit} id={hit.rule_id} goTo={goTo} />{' '}
                  <Tag tone={hit.effect === 'permit' ? 'ok' : hit.guardrail ? 'wait' : 'bad'}>
                    {hit.guardrail ? 'guardrail' : hit.effect}
                  </Tag>
                </div>
              ))}
            </dd>
          </>
        ) : null}
        {live ? (
          <>
            <dt>Currently enforced</dt>
            <dd>
              <DecisionTag decision={live.decision} />{' '}
              {live.decision === verdict.decision ? 'same decision' : <strong>this text changes it</strong>}
            </dd>
          </>
        ) : null}
      </dl>
    </Stack>
  );
}

function Rule({
  hit,
  id,
  goTo,
}: {
  hit: Result['hits'][number] | undefined;
  id: string;
  goTo: (line: number) => void;
}) {
  const { line } = hit ?? {};
  if (line === undefined) return <span className="mono">{id}</span>;
  return (
    <Anchor component="button" type="button" ta="left" className="mono" onClick={() => goTo(line)}>
      {id}, line {line}
    </Anchor>
  );
}

function sentence({ deny_reason, masks, hold }: Verdict): string {
  if (deny_reason) return deny_reason;
  if (masks) return `masks ${masks.join(', ')}`;
  if (!hold) return '';
  const approvals = hold.required_approvals > 0 ? `, ${hold.required_approvals} needed` : '';
  return `${HOLD_KINDS[hold.hold_type].label}${approvals}, waits ${duration(hold.ttl_seconds * 1000)}`;
}
