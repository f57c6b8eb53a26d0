import { Text } from '@mantine/core';
import { Tag } from '../ui/status.tsx';

/** Where a pipeline got a version from. */
export interface VersionSource {
  repo?: string | undefined;
  commit?: string | undefined;
  ref?: string | undefined;
  path?: string | undefined;
  run_url?: string | undefined;
  actor?: string | undefined;
  proven: readonly string[];
}

const FIELDS = [
  ['repo', 'repository'],
  ['commit', 'commit'],
  ['ref', 'branch or tag'],
  ['path', 'file'],
  ['actor', 'started by'],
  ['run_url', 'run'],
] as const;

/**
 * What a pipeline's token proved, kept apart from what was only stated with the text. Only a proven address is a link: a stated
 * one could lead anywhere.
 */
export function PolicySource({ source }: { source: VersionSource }) {
  const part = (proven: boolean) =>
    FIELDS.filter(([field]) => source[field] !== undefined && source.proven.includes(field) === proven);
  const line = (proven: boolean) => (
    <Text size="sm" component="div">
      <Tag tone={proven ? 'ok' : 'quiet'}>{proven ? 'proven by its pipeline' : 'stated, not proven'}</Tag>{' '}
      {part(proven).map(([field, word]) => (
        <span key={field} style={{ marginRight: 12 }}>
          <span className="dim">{word}</span>{' '}
          {field === 'run_url' && proven && source[field]!.startsWith('https://') ? (
            <a href={source[field]} target="_blank" rel="noreferrer noopener">
              {source[field]}
            </a>
          ) : (
            <span className="mono">{source[field]}</span>
          )}
        </span>
      ))}
    </Text>
  );
  return (
    <section aria-label="Where it comes from" style={{ marginBottom: 12 }}>
      {part(true).length > 0 ? line(true) : null}
      {part(false).length > 0 ? line(false) : null}
    </section>
  );
}
