import { useQuery } from '@tanstack/react-query';
import { visible } from '../../server/lib/visible.ts';
import { type Answers, trpc } from './trpc.ts';

/** Something that has an id, with its name. */
export interface Named {
  id: string;
  name: string;
}

const long = { staleTime: 300_000 };

type Directory = Answers['people']['directory'];
interface Index {
  user: Named[];
  api_key: Named[];
  agent_key: Named[];
  /** The display text: a person by name; a key by its name, marked as a key. */
  said: ReadonlyMap<string, string>;
}
const NONE: Index = { user: [], api_key: [], agent_key: [], said: new Map() };
/** A response is indexed once, however many rows name people. */
const indexes = new WeakMap<Directory, Index>();

function indexOf(directory: Directory): Index {
  const known = indexes.get(directory);
  if (known) return known;
  const { people: user, keys } = directory;
  const of = (which: 'api_key' | 'agent_key'): Named[] =>
    keys.flatMap(({ id, kind, name, ended }) =>
      kind === which ? [{ id, name: ended ? `${name} (ended)` : name }] : [],
    );
  const [api_key, agent_key] = [of('api_key'), of('agent_key')];
  const said = new Map([
    ...[...api_key, ...agent_key].map(({ id, name }) => [id, `key “${visible(name)}”`] as const),
    ...user.map(({ id, name }) => [id, visible(name)] as const),
  ]);
  const index = { user, api_key, agent_key, said };
  indexes.set(directory, index);
  return index;
}

/** People and keys with their names, including ended ones. */
export function usePeopleAndKeys(): Index {
  const { data } = useQuery(trpc.people.directory.queryOptions({}, long));
  return data ? indexOf(data) : NONE;
}

/**
 * Who did something: a person by name; a key by its name, marked as a key, so that it cannot pass for a person. An id without a
 * name (operators, keys of long ago) is shown as it is.
 */
export function usePeople(): (id: string) => string {
  const { said } = usePeopleAndKeys();
  return (id) => said.get(id) ?? id;
}
