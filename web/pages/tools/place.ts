/** The top-level members of a definition. */
const MEMBERS: Record<string, string> = {
  title: 'the title',
  description: 'the description',
  inputSchema: 'the arguments',
  outputSchema: 'the results',
  annotations: 'what it says of its risk',
};

/**
 * Where a JSON pointer leads in a definition: the member in our words, then the names of arguments, and the rest, in the tool
 * server's words.
 */
export function placeOf(at: string): { member: string; names: string[]; rest: string[] } | undefined {
  const [first, ...tokens] = at
    .split('/')
    .slice(1)
    .map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));
  if (first === undefined || !Object.hasOwn(MEMBERS, first)) return undefined;
  const names: string[] = [];
  // the JSON Schema keyword `properties` is followed by a name; an argument called "properties" is a name itself
  while (tokens[0] === 'properties' && tokens.length > 1) names.push(...tokens.splice(0, 2).slice(1));
  return { member: MEMBERS[first]!, names, rest: tokens };
}
