import { Button, FileButton, Group, Stack, Text, Textarea, TextInput } from '@mantine/core';
import { useState } from 'react';
import { LIST_LIMITS, LIST_NAME } from '../../../server/domain/lists.ts';
import { toastDone } from '../../lib/errors.tsx';
import { filled, useServerForm } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { api, trpc } from '../../lib/trpc.ts';
import { FormFoot } from '../../ui/form.tsx';
import { readValues } from './values.ts';

/** A larger file cannot be a list, whatever it contains. */
const MOST_FILE_BYTES = 8 * 1024 * 1024;

/** A new list, or a new version of one. Values are pasted, or come from a file. */
export function ListForm({
  list,
  onDone,
  onCancel,
}: {
  /** The list to change, with the version that was read, and its values if they are few enough to edit. */
  list?: { name: string; version: number; values: readonly string[] | undefined };
  onDone: (name: string) => void;
  onCancel: () => void;
}) {
  const form = useServerForm({
    initialValues: { name: list?.name ?? '', text: list?.values?.join('\n') ?? '', comment: '' },
    pointers: { text: '/values' },
  });
  // not in the field: browsers are slow with text fields of megabytes
  const [file, setFile] = useState<{ name: string; text: string }>();
  const [unfit, setUnfit] = useState<string>();
  const values = readValues(file?.text ?? form.values.text);
  const named = LIST_NAME.test(form.values.name);
  const fault =
    values.length > LIST_LIMITS.values
      ? `${values.length.toLocaleString()} values: a list has at most ${LIST_LIMITS.values.toLocaleString()}`
      : undefined;
  const take = async (chosen: File | null) => {
    setUnfit(undefined);
    if (!chosen) return;
    if (chosen.size > MOST_FILE_BYTES) {
      setUnfit(`${chosen.name} is too large for a list`);
      return;
    }
    try {
      // no replacement characters for bytes that are not text
      const text = new TextDecoder('utf-8', { fatal: true }).decode(await chosen.arrayBuffer());
      setFile({ name: chosen.name, text });
    } catch {
      setUnfit(`${chosen.name} is not text in UTF-8`);
    }
  };
  return (
    <form
      onSubmit={form.onSubmit(async ({ name, comment }) => {
        try {
          const after = await api.lists.put.mutate({
            name,
            values,
            version: list?.version ?? 0,
            comment: filled(comment),
          });
          await queryClient.invalidateQueries(trpc.lists.pathFilter());
          toastDone(after.newest.status === 'pending' ? 'Waiting for approval' : 'In use from now on');
          onDone(name);
        } catch (error) {
          form.refused(error);
        }
      })}
    >
      <Stack gap="sm">
        {list ? null : (
          <TextInput
            label="Name"
            description="Lower-case letters, digits, “_” and “-”"
            spellCheck={false}
            data-autofocus
            maxLength={64}
            {...form.getInputProps('name')}
            error={form.errors.name ?? (form.values.name !== '' && !named ? 'is not a valid name' : undefined)}
          />
        )}
        {file ? (
          <Group justify="space-between">
            <Text>
              {file.name}: <strong>{values.length.toLocaleString()} values</strong>
            </Text>
            <Button size="xs" variant="default" onClick={() => setFile(undefined)}>
              Type them instead
            </Button>
          </Group>
        ) : (
          <Textarea
            label="Values, one per line"
            description="They replace all values. Case and spaces within a value count."
            rows={12}
            spellCheck={false}
            styles={{ input: { fontFamily: 'var(--mantine-font-family-monospace)' } }}
            {...form.getInputProps('text')}
          />
        )}
        <Group gap="sm">
          <FileButton onChange={(chosen) => void take(chosen)} accept="text/plain,text/csv,.txt,.csv">
            {(props) => (
              <Button {...props} size="xs" variant="default">
                Load them from a file
              </Button>
            )}
          </FileButton>
          <Text size="sm" c={fault ? 'var(--mantine-color-error)' : 'dimmed'} role="status">
            {unfit ?? fault ?? `${values.length.toLocaleString()} values`}
          </Text>
        </Group>
        {file && form.errors.text ? (
          <Text c="var(--mantine-color-error)" role="alert">
            {form.errors.text}
          </Text>
        ) : null}
        <Textarea label="Comment" autosize minRows={1} maxLength={2000} {...form.getInputProps('comment')} />
        <FormFoot
          fault={form.fault}
          action={list ? 'Replace the values' : 'Create the list'}
          busy={form.submitting}
          disabled={!named || fault !== undefined}
          onCancel={onCancel}
        />
      </Stack>
    </form>
  );
}
