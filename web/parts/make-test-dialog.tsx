import '@mantine/core/styles/Checkbox.css';
import { Checkbox, Modal, NativeSelect, Stack, Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import type { Decision } from '../../server/domain/decision.ts';
import { handSuite } from '../lib/drafted-suite.ts';
import { useServerForm } from '../lib/form.ts';
import { useMe } from '../lib/session.ts';
import { api, trpc } from '../lib/trpc.ts';
import { FormFoot } from '../ui/form.tsx';
import { Shown } from '../ui/states.tsx';
import { DECISION } from '../ui/status.tsx';
import type { TestedDecision } from './make-test.tsx';

/**
 * Asks what a test made from a decision should expect and which suite it goes into, and opens that suite in the editor with the
 * test.
 */
export default function MakeTestDialog(props: { decision: TestedDecision; wrong: boolean; onClose: () => void }) {
  const policies = useQuery(trpc.policies.list.queryOptions({ limit: 200 }));
  // it may be shown over the details of the decision, which already have a header
  return (
    <Modal.Root opened onClose={props.onClose}>
      <Modal.Overlay />
      <Modal.Content>
        <Modal.Body>
          <Modal.Title mb="sm">
            <strong>{props.wrong ? 'This was wrong' : 'Make a test from it'}</strong>
          </Modal.Title>
          <Shown query={policies} lines={4}>
            {({ policies: all }) => <Form {...props} ids={all.map(({ id }) => id)} />}
          </Shown>
        </Modal.Body>
      </Modal.Content>
    </Modal.Root>
  );
}

function Form({
  decision: { event_id, decision, policyId },
  wrong,
  ids,
  onClose,
}: Parameters<typeof MakeTestDialog>[0] & { ids: string[] }) {
  const me = useMe();
  const navigate = useNavigate();
  const known = policyId !== undefined && ids.includes(policyId) ? policyId : undefined;
  const form = useServerForm({
    initialValues: {
      policy: known ?? ids[0] ?? '',
      should: wrong ? (decision === 'deny' ? 'allow' : 'deny') : '',
      unmasked: false,
    },
    pointers: { unmasked: '/mask' },
  });
  const others = (Object.keys(DECISION) as Decision[]).filter((one) => one !== decision);
  if (ids.length === 0) return <Text>There is no policy yet to add the test to.</Text>;
  return (
    <form
      onSubmit={form.onSubmit(async ({ policy, should, unmasked }) => {
        if (form.submitting) return;
        try {
          const made = await api.decisionTests.make.mutate({
            ...{ id: policy, event_id, mask: !unmasked },
            ...(should !== '' && { should: { decision: should as Decision } }),
          });
          handSuite(policy, { ...made, event_id });
          onClose();
          await navigate({ to: '/policies/$id', params: { id: policy }, search: { tab: 'tests' } });
        } catch (error) {
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        <NativeSelect
          label="Test suite of"
          description="The editor opens with the new test. Nothing is saved yet."
          data={ids}
          {...form.getInputProps('policy')}
        />
        <NativeSelect
          label="The test expects"
          data={[
            ...(wrong ? [] : [{ value: '', label: `what was decided: ${DECISION[decision][0]}` }]),
            ...others.map((value) => ({ value, label: DECISION[value][0] })),
          ]}
          {...form.getInputProps('should')}
        />
        {me.has('admin') ? (
          <Checkbox
            label="With masked values as they were"
            description="Everyone who reads the policy reads them. Otherwise they stay only where a policy compares them."
            {...form.getInputProps('unmasked', { type: 'checkbox' })}
          />
        ) : null}
        <Text size="sm" c="dimmed">
          The test has as little of the request as decides the same. The audit log records that you saw it.
        </Text>
        <FormFoot fault={form.fault} action="Make the test" busy={form.submitting} onCancel={onClose} />
      </Stack>
    </form>
  );
}
