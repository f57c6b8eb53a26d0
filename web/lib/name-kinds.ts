import type { TagKind } from '../../server/policy/language/head.ts';

/** The tenant's names, for completion: each may be called on every keystroke, and returns nothing if it cannot answer. */
export interface KnownNames {
  tools(part: string): Promise<readonly { name: string; server: string; status: string; labels: readonly string[] }[]>;
  servers(): Promise<readonly { id: string; tools: number; trust: number | null }[]>;
  agents(part: string): Promise<readonly { id: string; roles: readonly string[]; labels: readonly string[] }[]>;
  /** For the tools with this name, one for each server. */
  schemas(tool: string): Promise<readonly unknown[]>;
  lists(): Promise<readonly string[]>;
  groups(): Promise<readonly string[]>;
}

/** The kinds of arguments, as people call them. */
export const KIND_WORDS: Record<TagKind, string> = {
  str: 'text',
  num: 'number',
  bool: 'true or false',
  list: 'list of texts',
};
