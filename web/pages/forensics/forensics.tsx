import './forensics.css';
import { Anchor, Paper, Stack, Text, Title, VisuallyHidden } from '@mantine/core';
import { IconDownload, IconLinkOff, IconPackage, IconRosetteDiscountCheck } from '@tabler/icons-react';
import { keepPreviousData, useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { usePeople } from '../../lib/people.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { VerifyPanel } from '../../parts/verify-panel.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { CopyButton, Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { More, Pager } from '../../ui/pager.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { checkCommands } from './commands.ts';
import { ExportForm } from './export.tsx';

/** Verification of the decision chain, evidence packages and signed checkpoints. */
export function Forensics() {
  return (
    <Page
      title="Forensics"
      lead="Every decision is a record that includes the hash of the previous one. Changing a record breaks every record after it."
      docs={[
        ['formats', 'Signed formats'],
        ['chain', 'When a chain is closed'],
      ]}
    >
      <Stack gap="lg">
        <VerifyPanel chain="forensics" />
        <div className="two">
          <ExportForm />
          <HowToCheck />
        </div>
        <Packages />
        <Checkpoints />
      </Stack>
    </Page>
  );
}

type Package = Answers['forensics']['list']['packages'][number];
const PAGE = 20;

function Packages() {
  const [page, setPage] = useState(1);
  const [zone] = useZone();
  const nameOf = usePeople();
  const query = useQuery(
    trpc.forensics.list.queryOptions({ limit: PAGE, offset: (page - 1) * PAGE }, { placeholderData: keepPreviousData }),
  );
  const total = query.data?.total ?? 0;
  return (
    <section aria-labelledby="packages-title">
      <Title order={2} size="h3" id="packages-title" mb="xs">
        Packages
      </Title>
      <DataTable<Package>
        label="Packages"
        rows={query.data?.packages}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ package_id }) => package_id}
        empty={
          <EmptyState icon={IconPackage} title="No packages yet">
            Choose a time span above, enter a purpose, and export it. The package is kept here, byte for byte.
          </EmptyState>
        }
        columns={[
          {
            header: 'Purpose',
            main: true,
            cell: ({ package_id, purpose, created_at, created_by }) => (
              <>
                <PageLink to="/forensics/packages/$id" params={{ id: package_id }}>
                  <Hostile text={purpose} />
                </PageLink>
                <Text size="xs" c="dimmed" fw={400}>
                  <When at={created_at} /> by {nameOf(created_by)}
                </Text>
              </>
            ),
          },
          {
            header: 'Span',
            cell: ({ from, to, first_seq, last_seq, record_count }) => (
              <div>
                <div style={{ whiteSpace: 'nowrap' }}>{fullTime(from, zone).slice(0, 16)} –</div>
                <div style={{ whiteSpace: 'nowrap' }}>{fullTime(to, zone).slice(0, 16)}</div>
                <Text size="xs" c="dimmed">
                  {record_count === 0
                    ? 'no records'
                    : `${record_count.toLocaleString()} records, ${first_seq.toLocaleString()} to ${last_seq.toLocaleString()}`}
                </Text>
              </div>
            ),
          },
          {
            header: 'Chain',
            cell: ({ chain_intact }) =>
              chain_intact ? (
                <Tag tone="ok" icon={IconRosetteDiscountCheck}>
                  intact
                </Tag>
              ) : (
                <Tag tone="bad" icon={IconLinkOff}>
                  broken
                </Tag>
              ),
          },
          { header: 'Package hash', cell: ({ package_hash }) => <Id value={package_hash} length={20} /> },
          { header: 'Signer', cell: ({ public_key_fingerprint }) => <Id value={public_key_fingerprint} length={20} /> },
          {
            header: 'File',
            align: 'right',
            cell: ({ package_id, size, purpose }) => (
              <Anchor
                href={`/v1/forensics/packages/${package_id}/download`}
                download
                style={{ display: 'inline-flex', gap: 4, alignItems: 'center', whiteSpace: 'nowrap' }}
              >
                <IconDownload size={15} aria-hidden />
                <VisuallyHidden component="span">Download the package {purpose}, </VisuallyHidden>
                {Math.max(1, Math.round(size / 1024)).toLocaleString()} KiB
              </Anchor>
            ),
          },
        ]}
      />
      <Pager page={page} size={PAGE} total={total} onPage={setPage} />
    </section>
  );
}

function Checkpoints() {
  const query = useInfiniteQuery({
    queryKey: [...trpc.chain.checkpoints.queryKey({ chain: 'forensics' }), 'pages'],
    queryFn: ({ pageParam, signal }) =>
      api.chain.checkpoints.query({ chain: 'forensics', limit: 8, before: pageParam }, { signal }),
    initialPageParam: undefined as number | undefined,
    getNextPageParam: ({ checkpoints }) => (checkpoints.length === 8 ? checkpoints.at(-1)?.seq : undefined),
  });
  const rows = query.data?.pages.flatMap(({ checkpoints }) => checkpoints);
  return (
    <section aria-labelledby="checkpoints-title">
      <Title order={2} size="h3" id="checkpoints-title">
        Checkpoints
      </Title>
      <Text c="dimmed" mb="xs">
        Signed heads of the chain. Anyone who keeps a copy elsewhere can prove that the chain was later cut or
        rewritten.
      </Text>
      <DataTable
        label="Checkpoints"
        rows={rows}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ seq }) => String(seq)}
        empty={
          <EmptyState title="No checkpoints yet">
            The first one is signed soon after the first decision is recorded.
          </EmptyState>
        }
        columns={[
          { header: 'Record', main: true, cell: ({ seq }) => seq.toLocaleString() },
          { header: 'Signed', cell: ({ created_at }) => <When at={created_at} exact /> },
          { header: 'Hash', cell: ({ hash }) => <Id value={hash} length={28} /> },
          { header: 'Key', cell: ({ kid }) => <Id value={kid} length={16} /> },
          { header: 'Signed note', cell: ({ note }) => <CopyButton text={note} label="Copy the signed note" /> },
        ]}
      />
      <More query={query} label="Older checkpoints" />
    </section>
  );
}

function HowToCheck() {
  return (
    <Paper component="section" aria-labelledby="check-title">
      <Title order={2} size="h3" id="check-title">
        Verify it independently
      </Title>
      <Text c="dimmed" mb="sm">
        A package needs no network and no trust in this server, only the public key: get that some other way, and
        compare its fingerprint with the one of the package.
      </Text>
      <CodeBlock text={checkCommands(window.location.origin)} label="commands" />
    </Paper>
  );
}
