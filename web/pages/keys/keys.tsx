import { Button } from '@mantine/core';
import { IconPlus } from '@tabler/icons-react';
import { getRouteApi } from '@tanstack/react-router';
import { useState } from 'react';
import { Page } from '../../ui/page.tsx';
import { AgentKeys } from './agent-keys.tsx';
import { ApiKeys } from './api-keys.tsx';

const route = getRouteApi('/app/keys');

/** Keys of programs, and keys of agents. */
export function Keys() {
  const { kind } = route.useSearch();
  const navigate = route.useNavigate();
  const agents = kind === 'agents';
  const [creating, setCreating] = useState(false);
  return (
    <Page
      title="Keys"
      docs={[['people#keys', 'Keys and scopes']]}
      lead={
        agents
          ? 'An agent presents its key when it asks for a decision. The agent and its role come from the key, never from the request.'
          : 'Credentials for proxies, pipelines and other programs. A key can use only the routes of its scopes.'
      }
      actions={
        <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setCreating(true)}>
          {agents ? 'New agent key' : 'New API key'}
        </Button>
      }
    >
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for what a form sends */}
      <div className="segments" role="group" aria-label="Kind of keys" style={{ marginBottom: 12 }}>
        <button type="button" aria-pressed={!agents} onClick={() => void navigate({ search: {} })}>
          API keys
        </button>
        <button type="button" aria-pressed={agents} onClick={() => void navigate({ search: { kind: 'agents' } })}>
          Agent keys
        </button>
      </div>
      {agents ? (
        <AgentKeys creating={creating} close={() => setCreating(false)} create={() => setCreating(true)} />
      ) : (
        <ApiKeys creating={creating} close={() => setCreating(false)} create={() => setCreating(true)} />
      )}
    </Page>
  );
}
