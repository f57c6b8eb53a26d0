import {
  IconAlertOctagon,
  IconCheck,
  IconCircleDashed,
  IconClockPause,
  IconEyeOff,
  IconGauge,
  IconHourglassEmpty,
  IconPencil,
  IconPlayerStop,
  IconRosetteDiscountCheck,
  IconX,
} from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Decision } from '../../server/domain/decision.ts';

export type Tone = 'ok' | 'info' | 'bad' | 'wait' | 'limit' | 'quiet';
type Icon = typeof IconCheck;
type Entry = [label: string, tone: Tone, icon: Icon];

/** The five decisions. Every page uses this order and these labels, icons and colors. */
export const DECISION = {
  allow: ['Allowed', 'ok', IconCheck],
  allow_with_masking: ['Allowed, masked', 'info', IconEyeOff],
  escrow: ['Held', 'wait', IconClockPause],
  deny: ['Denied', 'bad', IconAlertOctagon],
  rate_limited: ['Rate limited', 'limit', IconGauge],
} as const satisfies Record<Decision, Entry>;

const HOLD = {
  held: ['Held', 'wait', IconClockPause],
  released: ['Released', 'info', IconRosetteDiscountCheck],
  consumed: ['Consumed', 'ok', IconCheck],
  rejected: ['Rejected', 'bad', IconX],
  expired: ['Expired', 'quiet', IconHourglassEmpty],
  cancelled: ['Cancelled', 'quiet', IconPlayerStop],
} as const satisfies Record<string, Entry>;

const POLICY = {
  draft: ['Draft', 'quiet', IconPencil],
  pending_approval: ['In review', 'wait', IconCircleDashed],
  deployed: ['Live', 'ok', IconRosetteDiscountCheck],
  revoked: ['Revoked', 'bad', IconPlayerStop],
} as const satisfies Record<string, Entry>;

/** The status of a policy or a hold in a word. */
export function statusWord(of: 'policy' | 'hold', status: string): string {
  const words: Record<string, Entry> = of === 'policy' ? POLICY : HOLD;
  return words[status]?.[0] ?? status;
}

/** Reviews of a policy version, as past actions. */
export const REVIEW: Record<string, [word: string, tone: Tone]> = {
  approved: ['approved', 'ok'],
  rejected: ['rejected', 'bad'],
  changes_requested: ['requested changes', 'wait'],
  break_glass: ['used break glass', 'bad'],
  dismissed: ['review dismissed by a new version', 'quiet'],
  commented: ['commented', 'info'],
};

/** A label with an icon and a color, so that color alone carries no meaning. */
export function Tag({ tone, icon: Shape, children }: { tone: Tone; icon?: Icon; children: ReactNode }) {
  return (
    <span className="tag" data-tone={tone}>
      {Shape ? <Shape size={13} stroke={2.2} aria-hidden /> : null}
      {children}
    </span>
  );
}

const tagOf = ([label, tone, icon]: Entry) => (
  <Tag tone={tone} icon={icon}>
    {label}
  </Tag>
);

export const DecisionTag = ({ decision }: { decision: Decision }) => tagOf(DECISION[decision]);
export const HoldTag = ({ status }: { status: keyof typeof HOLD }) => tagOf(HOLD[status]);
export const PolicyTag = ({ status }: { status: keyof typeof POLICY }) => tagOf(POLICY[status]);

/** The status of the newest version, and of the enforced one if that is another. */
export function PolicyTags({
  policy: { status, version, live_version },
}: {
  policy: { status: keyof typeof POLICY; version: number; live_version: number | null };
}) {
  if (live_version === null || live_version === version) return <PolicyTag status={status} />;
  const [live, newest] = [POLICY.deployed, POLICY[status]];
  return (
    <span className="tags">
      {tagOf([`${live[0]} v${live_version}`, live[1], live[2]])}{' '}
      {tagOf([`${newest[0]} v${version}`, newest[1], newest[2]])}
    </span>
  );
}
