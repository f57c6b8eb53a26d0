import { getCommand } from '../lib/curl.ts';
import { CodeBlock } from '../ui/code.tsx';

/** The command that reads what a page shows from the API; the key is left to its reader. */
export const AsCurl = ({ path }: { path: readonly string[] }) => (
  <CodeBlock label="curl" wrap text={getCommand(window.location.origin, path)} />
);
