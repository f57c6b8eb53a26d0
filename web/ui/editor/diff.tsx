import { Group, Text } from '@mantine/core';
import { useMediaQuery } from '@mantine/hooks';
import { useState } from 'react';
import { later } from '../../lib/later.tsx';
import { Loading } from '../states.tsx';

const TextDiff = later(async () => (await import('./merge-view.tsx')).default, { meanwhile: <Loading /> });

/** The changes from one text to another. Narrow screens get one column. */
export function Diff({
  before,
  after,
  label,
  plain = false,
}: {
  before: string;
  after: string;
  label: string;
  /** The text is not Cedar and must not be colored as if it were. */
  plain?: boolean;
}) {
  const wide = useMediaQuery('(min-width: 62em)') ?? true;
  const [chosen, choose] = useState<boolean>();
  const sideBySide = chosen ?? wide;
  if (before === after) {
    return (
      <Text c="dimmed" py="sm">
        The two texts are the same.
      </Text>
    );
  }
  return (
    <>
      <Group justify="space-between" mb={6}>
        <Text size="sm" c="dimmed">
          {label}
        </Text>
        <fieldset className="segments" aria-label="Layout">
          <button type="button" aria-pressed={sideBySide} onClick={() => choose(true)}>
            side by side
          </button>
          <button type="button" aria-pressed={!sideBySide} onClick={() => choose(false)}>
            one column
          </button>
        </fieldset>
      </Group>
      <TextDiff before={before} after={after} sideBySide={sideBySide} label={label} plain={plain} />
    </>
  );
}
