import { IconAlertTriangle, IconCircleDashed, IconGhost, IconRosetteDiscountCheck, IconX } from '@tabler/icons-react';
import { CHANGE_REASONS, type ToolStatus } from '../../../server/domain/tools.ts';
import type { Answers } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { Tag, type Tone } from '../../ui/status.tsx';
import { placeOf } from './place.ts';

export const TOOL_STATUS: Record<ToolStatus, [label: string, tone: Tone, icon: typeof IconX]> = {
  pending: ['Not reviewed', 'wait', IconCircleDashed],
  changed: ['Changed', 'bad', IconAlertTriangle],
  approved: ['Approved', 'ok', IconRosetteDiscountCheck],
  rejected: ['Rejected', 'bad', IconX],
  gone: ['Gone', 'quiet', IconGhost],
};

export function ToolTag({ status }: { status: ToolStatus }) {
  const [label, tone, icon] = TOOL_STATUS[status];
  return (
    <Tag tone={tone} icon={icon}>
      {label}
    </Tag>
  );
}

export const MODES = {
  default: 'Default: hold calls that write, once a tool was approved',
  off: 'Off: policies alone decide',
  warn: 'Warn: record it',
  hold: 'Hold: wait for a person',
  enforce: 'Enforce: deny, and show clients what was approved',
} as const;

type Change = Answers['tools']['get']['change'];

/** Why a definition is not the approved one, in words; where and what, in the words of the tool server. */
export function Reasons({ change }: { change: Change }) {
  return (
    <ul className="plain-list" aria-label="What is different">
      {change.reasons.map(({ code, at, found }) => (
        <li key={`${code} ${at} ${found}`} style={{ marginBottom: 4 }}>
          {CHANGE_REASONS[code]}
          {found === undefined ? null : (
            <>
              :{' '}
              <strong>
                “<Hostile text={found} />”
              </strong>
            </>
          )}{' '}
          <Where at={at} />
        </li>
      ))}
    </ul>
  );
}

function Where({ at }: { at: string }) {
  const place = placeOf(at);
  if (!place) return at === '' ? null : <Theirs text={at} />;
  const { member, names, rest } = place;
  return (
    <span className="dim">
      in {member}
      {names.length > 0 ? (
        <>
          , <Theirs text={names.join('.')} />
        </>
      ) : null}
      {rest.length > 0 ? (
        <>
          , <Theirs text={rest.join('/')} />
        </>
      ) : null}
    </span>
  );
}

const Theirs = ({ text }: { text: string }) => (
  <span className="mono">
    <Hostile text={text} />
  </span>
);
