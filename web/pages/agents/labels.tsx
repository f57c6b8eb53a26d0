import { Modal, Stack, Text, TextInput } from '@mantine/core';
import { useState } from 'react';
import { LABEL, MOST_LABELS } from '../../../server/domain/tools.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { FormFoot } from '../../ui/form.tsx';
import { Hostile } from '../../ui/hostile.tsx';

type Agent = Answers['tools']['agents']['agents'][number];

/** Sets the labels of an agent; open while an agent is given. */
export function LabelDialog({ agent, onClose }: { agent: Agent | undefined; onClose: () => void }) {
  return (
    <Modal
      opened={agent !== undefined}
      onClose={onClose}
      title={<strong>Labels of {agent ? <Hostile text={agent.id} name /> : null}</strong>}
      closeButtonProps={{ 'aria-label': 'Close' }}
    >
      {agent ? <LabelForm agent={agent} onDone={onClose} /> : null}
    </Modal>
  );
}

/** Two steps: the labels, then what they change. */
function LabelForm({ agent, onDone }: { agent: Agent; onDone: () => void }) {
  const [sure, setSure] = useState(false);
  const form = useServerForm({ initialValues: { labels: (agent.proposal?.what.labels ?? agent.labels).join(', ') } });
  const labels = [...new Set(form.values.labels.split(/[\s,]+/).filter(Boolean))];
  const wrong = labels.find((label) => !LABEL.test(label));
  const added = labels.filter((label) => !agent.labels.includes(label));
  const removed = agent.labels.filter((label) => !labels.includes(label));
  const same = added.length === 0 && removed.length === 0;
  return (
    <form
      onSubmit={form.onSubmit(async () => {
        if (!sure) {
          setSure(true);
          return;
        }
        try {
          const after = await api.tools.labelAgent.mutate({ agent_id: agent.id, labels });
          await queryClient.invalidateQueries(trpc.tools.pathFilter());
          toastDone(after.proposal ? 'Waiting for a second person' : 'Labels saved');
          onDone();
        } catch (error) {
          setSure(false);
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        {sure ? (
          <div role="status">
            <Text>
              Policies that read principal.labels decide by them at once, whatever key or token the agent has.
            </Text>
            <ul>
              {added.map((label) => (
                <li key={label}>
                  <strong>{label}</strong> is added
                </li>
              ))}
              {removed.map((label) => (
                <li key={label}>
                  <strong>{label}</strong> is taken away
                </li>
              ))}
            </ul>
          </div>
        ) : (
          <TextInput
            label="Labels, separated by commas"
            description={`At most ${MOST_LABELS}. Policies read them as principal.labels. Only people set them.`}
            spellCheck={false}
            data-autofocus
            {...form.getInputProps('labels')}
            error={form.errors.labels ?? (wrong === undefined ? undefined : `${wrong} is not a label`)}
          />
        )}
        <FormFoot
          fault={form.fault}
          action={sure ? 'Set the labels' : 'Continue'}
          busy={form.submitting}
          disabled={wrong !== undefined || same || labels.length > MOST_LABELS}
          onCancel={sure ? () => setSure(false) : onDone}
        />
      </Stack>
    </form>
  );
}
