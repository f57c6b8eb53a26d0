import { Button, Group } from '@mantine/core';
import { useState } from 'react';
import type { Decision } from '../../server/domain/decision.ts';
import { later } from '../lib/later.tsx';
import { useMe } from '../lib/session.ts';

const MakeTestDialog = later(async () => (await import('./make-test-dialog.tsx')).default);

/** A decision that a test can be made from. */
export interface TestedDecision {
  event_id: string;
  decision: Decision;
  /** The policy whose suite gets the test, unless the person picks another. */
  policyId: string | undefined;
}

/** Makes a test from a decision, as it was or as it should have been. Renders nothing for people who may not see requests. */
export function MakeTest({ decision, compact = false }: { decision: TestedDecision; compact?: boolean }) {
  const me = useMe();
  const [open, setOpen] = useState<'right' | 'wrong'>();
  if (!me.has('approver')) return null;
  const size = compact ? 'compact-xs' : 'xs';
  const label = compact ? `Make a test from it: ${decision.event_id}` : undefined;
  return (
    <>
      <Group gap="xs">
        <Button size={size} variant="default" aria-label={label} onClick={() => setOpen('right')}>
          Make a test from it
        </Button>
        {compact ? null : (
          <Button size={size} variant="default" onClick={() => setOpen('wrong')}>
            This was wrong
          </Button>
        )}
      </Group>
      {open ? <MakeTestDialog decision={decision} wrong={open === 'wrong'} onClose={() => setOpen(undefined)} /> : null}
    </>
  );
}
