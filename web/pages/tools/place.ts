/** The members of a definition. */
const MEMBERS: Record<string, string> = {
  title: 'the title',
  description: 'the description',
  inputSchema: 'the arguments',
  outputSchema: 'the results',
  annotations: 'what it says of its risk',
};

/**
 * Where in a definition a JSON pointer leads: the member in our words, then the names of arguments, and what of them, in the tool
 * server's.
 */
export function placeOf(at: string): { member: string; names: string[]; rest: string[] } | undefined {
  const [first, ...tokens] = at
    .split('/')
    .slice(1)
    .map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));
  if (first === undefined || !Object.hasOwn(MEMBERS, first)) return undefined;
  const names: string[] = [];
  // what is called properties by the server is a name, and what is called so by JSON Schema is followed by one
  while (tokens[0] === 'properties' && tokens.length > 1) names.push(...tokens.splice(0, 2).slice(1));
  return { member: MEMBERS[first]!, names, rest: tokens };
}
