import { Modal, Text, Title } from '@mantine/core';
import { Fragment } from 'react';
import { keysHere } from '../lib/keys.ts';
import { SingleKeys } from './single-keys.tsx';
import './keys-list.css';

/** The keys that do something here: those of the page first, then those of every page. */
export default function KeysList({ everywhere, onClose }: { everywhere: readonly string[]; onClose: () => void }) {
  const all = keysHere();
  const own = all.filter(([key]) => !everywhere.includes(key));
  const others = all.filter(([key]) => everywhere.includes(key));
  return (
    <Modal opened onClose={onClose} title={<strong>Keys on this page</strong>}>
      {own.length > 0 ? <Lines keys={own} /> : null}
      <Title order={2} size="h4" mt={own.length > 0 ? 'md' : 0} mb={6}>
        On every page
      </Title>
      <Lines keys={[['Ctrl K', 'Find anything, or go to a page'], ...others]} />
      <Text size="sm" c="dimmed" my="sm">
        Single keys do nothing while you type in a field. Press two keys one after the other.
      </Text>
      <SingleKeys />
    </Modal>
  );
}

const Lines = ({ keys }: { keys: readonly (readonly [key: string, does: string])[] }) => (
  <dl className="facts keys">
    {keys.map(([key, does]) => (
      <Fragment key={key}>
        <dt>
          {key.split(' ').map((one) => (
            <kbd key={one}>{one}</kbd>
          ))}
        </dt>
        <dd>{does}</dd>
      </Fragment>
    ))}
  </dl>
);
