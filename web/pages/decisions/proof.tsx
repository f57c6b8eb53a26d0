import { Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Id } from '../../ui/copy.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

/** Evidence that the record is the one that was written: its place and hash in the chain, and the signature that covers it. */
export function Proof({ event: { chain } }: { event: Answers['events']['get'] }) {
  const stored = useQuery(trpc.chain.records.queryOptions({ seq: chain.seq, radius: 1 }));
  const newest = useQuery(trpc.chain.checkpoint.queryOptions({}, { retry: false }));
  const record = stored.data?.records.find(({ seq }) => seq === chain.seq);
  const covered = newest.data && newest.data.seq >= chain.seq ? newest.data : undefined;
  return (
    <section aria-labelledby="proof">
      <Title order={2} id="proof" className="part">
        Proof
      </Title>
      <dl className="facts">
        <dt>Position in the chain</dt>
        <dd>#{chain.seq.toLocaleString()}</dd>
        <dt>Record hash</dt>
        <dd>
          <Id value={chain.hash} length={30} />{' '}
          {record?.computed_hash ? (
            <Tag tone={record.computed_hash === record.hash ? 'ok' : 'bad'}>
              {record.computed_hash === record.hash ? 'matches the stored text' : 'does not match the stored text'}
            </Tag>
          ) : null}
        </dd>
        <dt>Previous hash</dt>
        <dd>
          <Id value={chain.prev_hash} length={30} />
        </dd>
        <dt>Signed</dt>
        <dd>
          {covered ? (
            <>
              through #{covered.seq.toLocaleString()} by the key <Id value={covered.kid} length={12} />,{' '}
              <When at={covered.created_at} exact />
            </>
          ) : newest.isPending ? (
            '…'
          ) : (
            'not yet: the next checkpoint will cover it'
          )}
        </dd>
      </dl>
      <Text size="sm" mt={4}>
        This is what the server says about itself.{' '}
        <PageLink to="/forensics">Verify the chain, or export a package</PageLink> that can be checked without it.
      </Text>
    </section>
  );
}
