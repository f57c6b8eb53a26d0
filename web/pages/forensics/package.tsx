import { Button, Group, Paper, Stack, Text, Title } from '@mantine/core';
import { IconDownload, IconLinkOff, IconRosetteDiscountCheck } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { usePeople } from '../../lib/people.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { PrintButton, PrintSheet, Qr } from '../../parts/print.tsx';
import { Broken } from '../../ui/broken.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { CopyButton, Id } from '../../ui/copy.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { checkCommands } from './commands.ts';
import './forensics.css';

const route = getRouteApi('/app/forensics/packages/$id');

type Package = Answers['forensics']['package'];
const ABOUT: Readonly<Record<string, string>> = {
  'before.txt': 'the record before the first one, which shows where the range begins',
  'records.txt': 'the records, one a line, each after its hash',
  'lead.txt': 'the records from there to the next signed checkpoint',
  'checkpoints.txt': 'signed heads of the chain',
  'audit.txt': 'the parts of the audit log that tell who approved',
  'audit-checkpoints.txt': 'signed heads of the audit log',
  'pubkey.pem': 'the public keys; compare their fingerprints with ones from elsewhere',
  'check.sh': 'checks the package with openssl, sha256sum and b3sum',
  'VERIFY.md': 'how to check it, in words',
  SHA256SUMS: 'sums of the files',
  B3SUMS: 'sums of the files',
};

/** One evidence package: who made it from which records, what is in it, and how anyone can check it without this server. */
export function PackagePage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.forensics.package.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  const made = query.data;
  if (!made) {
    return (
      <Page title="Evidence package">
        <Loading lines={12} />
      </Page>
    );
  }
  return (
    <Page
      title={<Hostile text={made.purpose} />}
      tab={`Evidence: ${made.purpose}`}
      lead="A signed package of records. Anyone can check it without this server."
      docs={[['formats', 'Signed formats']]}
      actions={
        <>
          <PrintButton />
          <Button
            component="a"
            href={`/v1/forensics/packages/${made.package_id}/download`}
            download
            leftSection={<IconDownload size={16} aria-hidden />}
          >
            Download, {kib(made.size)}
          </Button>
        </>
      }
    >
      <Stack gap="lg">
        {made.chain_intact ? null : (
          <Notice tone="bad" title="The chain was broken when it was exported">
            The package says so, and its files show where: check.sh names the record.
          </Notice>
        )}
        <About made={made} />
        <Paper component="section" aria-labelledby="check-title" className="no-print">
          <Title order={2} id="check-title">
            Verify it
          </Title>
          <Text c="dimmed" mb="sm">
            Get the public key from somewhere other than the package, and compare its fingerprint with the one above.
          </Text>
          <CodeBlock
            text={checkCommands(window.location.origin, `${made.package_id}.tar`, made.public_key_fingerprint)}
            label="commands"
          />
        </Paper>
        <section aria-labelledby="files-title" className="no-print">
          <Title order={2} id="files-title" mb="xs">
            Files
          </Title>
          <DataTable
            label="Files"
            rows={made.files}
            rowKey={({ name }) => name}
            empty={null}
            columns={[
              {
                header: 'File',
                main: true,
                cell: ({ name }) => (
                  <>
                    <div className="mono whole">{name}</div>
                    <Text size="xs" c="dimmed" fw={400}>
                      {ABOUT[name] ?? (name.startsWith('bundles/') ? 'the policies in force, as they were signed' : '')}
                    </Text>
                  </>
                ),
              },
              { header: 'Size', align: 'right', width: 90, cell: ({ size }) => kib(size) },
              { header: 'SHA-256', width: 210, cell: ({ sha256 }) => <Id value={sha256} length={20} /> },
            ]}
          />
        </section>
      </Stack>
      <PrintSheet
        values={{
          Package: made.package_id,
          'Signing key': made.public_key_fingerprint,
          ...Object.fromEntries(made.files.map(({ name, sha256 }) => [name, sha256])),
        }}
        fingerprint={{ name: 'Package hash', value: made.package_hash }}
      />
    </Page>
  );
}

function About({ made }: { made: Package }) {
  const [zone] = useZone();
  const nameOf = usePeople();
  return (
    <Paper component="section" aria-label="About this package">
      <Group align="flex-start" gap="xl" wrap="wrap-reverse">
        <dl className="facts package-facts">
          <dt>Created</dt>
          <dd>
            <When at={made.created_at} exact /> by {nameOf(made.created_by)}
          </dd>
          <dt>Range</dt>
          <dd>
            {made.sequence_id === null ? null : (
              <>
                Session <Hostile text={made.sequence_id} />:{' '}
              </>
            )}
            {fullTime(made.from, zone)} – {fullTime(made.to, zone)}
          </dd>
          <dt>Records</dt>
          <dd>
            {made.record_count === 0
              ? 'none in this range: the package proves that'
              : `${count(made.record_count, 'record')}, ${made.first_seq.toLocaleString()} to ${made.last_seq.toLocaleString()} of the chain`}
          </dd>
          <dt>Chain</dt>
          <dd>
            {made.chain_intact ? (
              <>
                <Tag tone="ok" icon={IconRosetteDiscountCheck}>
                  intact
                </Tag>{' '}
                up to a signed checkpoint
              </>
            ) : (
              <Tag tone="bad" icon={IconLinkOff}>
                broken
              </Tag>
            )}
          </dd>
          <dt>Package hash</dt>
          <dd>
            <span className="mono whole">{made.package_hash}</span>{' '}
            <CopyButton text={made.package_hash} label="Copy the package hash" />
          </dd>
          <dt>Signing key</dt>
          <dd>
            <span className="mono whole">{made.public_key_fingerprint}</span>{' '}
            <CopyButton text={made.public_key_fingerprint} label="Copy the fingerprint of the signing key" />
          </dd>
          <dt>Package</dt>
          <dd>
            <span className="mono whole">{made.package_id}</span>
          </dd>
        </dl>
        <figure className="package-code no-print">
          <Qr text={made.package_hash} />
          <figcaption className="dim">The package hash</figcaption>
        </figure>
      </Group>
    </Paper>
  );
}

const kib = (bytes: number) => `${Math.max(1, Math.round(bytes / 1024)).toLocaleString()} KiB`;
