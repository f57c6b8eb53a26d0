import { getCommand } from '../lib/curl.ts';
import { CodeBlock } from '../ui/code.tsx';

/** The command that reads what a page shows from the API; readers fill in their own key. */
export const AsCurl = ({ path }: { path: readonly string[] }) => (
  <CodeBlock label="curl" wrap text={getCommand(window.location.origin, path)} />
);
