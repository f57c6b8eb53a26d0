import { IconClockCog, IconKey, IconUser } from '@tabler/icons-react';
import type { Answers } from '../../lib/trpc.ts';
import { Tag } from '../../ui/status.tsx';

type Sender = Answers['machines']['policy']['next'][number]['sent_by'];

const PERSON = { viewer: 'any member', author: 'authors', approver: 'approvers', admin: 'admins' } as const;

/** Who may send an event: people by role, keys by scope, or the server itself. */
export function SentBy({ sender }: { sender: Sender }) {
  return (
    <span className="senders">
      {sender.server ? (
        <Tag tone="quiet" icon={IconClockCog}>
          {sender.server}
        </Tag>
      ) : null}
      {sender.role ? (
        <Tag tone="info" icon={IconUser}>
          {PERSON[sender.role]}
        </Tag>
      ) : null}
      {sender.scopes?.length ? (
        <Tag tone="limit" icon={IconKey}>
          keys: {sender.scopes.join(', ')}
        </Tag>
      ) : null}
    </span>
  );
}
