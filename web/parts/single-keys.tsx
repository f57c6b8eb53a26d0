import '@mantine/core/styles/Checkbox.css';
import { Checkbox } from '@mantine/core';
import { useSingleKeys } from '../lib/keys.ts';

/** Turns off the single-key shortcuts, which need neither Ctrl nor another modifier. */
export function SingleKeys() {
  const [keys, set] = useSingleKeys();
  return (
    <Checkbox
      label="Single keys such as j, k, a and r do something"
      description="Turn them off if you dictate, or press keys by accident. Ctrl K and the arrows stay. Kept in this browser."
      checked={keys === 'on'}
      onChange={(event) => set(event.currentTarget.checked ? 'on' : 'off')}
    />
  );
}
