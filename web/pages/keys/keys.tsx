import { Button } from '@mantine/core';
import { IconPlus } from '@tabler/icons-react';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { Page } from '../../ui/page.tsx';
import { AgentKeys } from './agent-keys.tsx';
import { ApiKeys } from './api-keys.tsx';
import type { Dialog } from './key.tsx';
import { Workloads } from './workloads.tsx';

const route = getRouteApi('/app/keys');

const KINDS = {
  api: {
    label: 'API keys',
    lead: 'Credentials for proxies, pipelines and other programs. A key can use only the routes of its scopes.',
    create: 'New API key',
    list: ApiKeys,
  },
  agents: {
    label: 'Agent keys',
    lead: 'An agent presents its key when it asks for a decision. The agent and its role come from the key, never from the request.',
    create: 'New agent key',
    list: AgentKeys,
  },
  pipelines: {
    label: 'Pipelines',
    lead: 'Pipelines that sign in with a token of their platform, with no stored key that could leak.',
    create: 'Trust a pipeline',
    list: Workloads,
  },
} as const satisfies Record<
  string,
  { label: string; lead: string; create: string; list: (dialog: Dialog) => React.ReactNode }
>;
type Kind = keyof typeof KINDS;

/** Keys for programs, keys for agents, and pipelines that need no key. */
export function Keys() {
  const { kind = 'api' }: { kind?: Kind } = route.useSearch();
  const navigate = route.useNavigate();
  const [creating, setCreating] = useState(false);
  const { lead, create, list: List } = KINDS[kind];
  return (
    <Page
      title="Keys"
      docs={[
        ['people#keys', 'Keys and scopes'],
        ['policy-as-code#signing-in', 'Pipelines without a key'],
      ]}
      lead={lead}
      actions={
        <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setCreating(true)}>
          {create}
        </Button>
      }
    >
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Kind of keys" style={{ marginBottom: 12 }}>
        {(Object.keys(KINDS) as Kind[]).map((one) => (
          <button
            type="button"
            key={one}
            aria-pressed={one === kind}
            onClick={() => void navigate({ search: one === 'api' ? {} : { kind: one } })}
          >
            {KINDS[one].label}
          </button>
        ))}
      </div>
      <List key={kind} creating={creating} close={() => setCreating(false)} create={() => setCreating(true)} />
    </Page>
  );
}
