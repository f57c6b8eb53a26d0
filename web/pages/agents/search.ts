/** What the address of the page says. */
export interface AgentFilter {
  q?: string;
  label?: string;
  after?: string;
}

export function readAgentFilter(search: Record<string, unknown>): AgentFilter {
  const found: AgentFilter = {};
  for (const name of ['q', 'label', 'after'] as const) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // the router parses values that look like numbers
    if (typeof value === 'number') found[name] = String(value);
  }
  return found;
}
