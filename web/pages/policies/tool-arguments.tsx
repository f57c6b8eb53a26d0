import { Button, Text } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { useQuery } from '@tanstack/react-query';
import { argumentsOf } from '../../../server/policy/language/argument-kinds.ts';
import type { TagKind } from '../../../server/policy/language/head.ts';
import { NAMES } from '../../lib/known-names.ts';
import { KIND_WORDS } from '../../lib/name-kinds.ts';
import { Hostile } from '../../ui/hostile.tsx';

const EXAMPLE: Record<TagKind, unknown> = { str: '', num: 0, bool: false, list: [] };
const MOST = 12;

type Kinds = NonNullable<ReturnType<typeof argumentsOf>>;

/** The length of a list follows from the list itself. */
const isLength = (kinds: Kinds, path: string) =>
  path.endsWith('.length') && kinds.has(path.slice(0, -'.length'.length));

/** The arguments as a JSON object with an example value for each. */
function exampleOf(kinds: Kinds): string {
  const root: Record<string, unknown> = {};
  for (const [path, of] of kinds) {
    const names = path.split('.');
    if (isLength(kinds, path)) continue;
    let place = root;
    for (const name of names.slice(0, -1)) {
      const next = Object.hasOwn(place, name) ? place[name] : undefined;
      if (typeof next === 'object' && next !== null) place = next as Record<string, unknown>;
      else {
        const made = {};
        Object.defineProperty(place, name, { value: made, enumerable: true, configurable: true, writable: true });
        place = made;
      }
    }
    const value = of?.[0] === undefined ? null : EXAMPLE[of[0]];
    Object.defineProperty(place, names.at(-1)!, { value, enumerable: true, configurable: true, writable: true });
  }
  return JSON.stringify(root, null, 2);
}

/** The arguments that a tool takes according to its schema, and a button that writes them into the field above. */
export function ToolArguments({ tool, fill }: { tool: string; fill: (text: string) => void }) {
  const [name] = useDebouncedValue(tool.trim(), 300);
  const { data } = useQuery({
    queryKey: ['arguments of', name],
    queryFn: async () => (await NAMES.schemas(name)).map(argumentsOf).find((one) => one && one.size > 0) ?? null,
    enabled: name !== '',
    staleTime: 60_000,
  });
  if (!data || name !== tool.trim()) return null;
  const named = [...data].filter(([path]) => !isLength(data, path));
  return (
    <Text size="sm" c="dimmed">
      It takes{' '}
      {named.slice(0, MOST).map(([path, kinds], n) => (
        <span key={path}>
          {n > 0 ? ', ' : ''}
          <span className="mono">
            <Hostile text={path} />
          </span>
          {kinds ? ` (${kinds.map((kind) => KIND_WORDS[kind]).join(' or ')})` : ''}
        </span>
      ))}
      {named.length > MOST ? ` and ${named.length - MOST} more` : ''}.{' '}
      <Button size="compact-xs" variant="default" onClick={() => fill(exampleOf(data))}>
        Fill in
      </Button>
    </Text>
  );
}
