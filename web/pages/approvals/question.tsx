import type { ReactNode } from 'react';
import { doubtfulNames } from '../../../server/domain/doubtful-names.ts';
import { money } from '../../lib/words.ts';
import { ActionTargetLines, ActionTitle } from '../../parts/action.tsx';
import { Clamped, Hostile } from '../../ui/hostile.tsx';
import { doubtsOf } from './claims.ts';
import type { Hold } from './view.tsx';

/**
 * What a person is asked before a vote or a report that can release an action: what the server knows about the action, and what
 * will happen. None of it is in the agent's words.
 */
export function Question({
  hold,
  about,
  does,
  children,
}: {
  hold: Hold;
  /** What it is about, in addition to the action. */
  about?: ReactNode;
  does: string;
  /** Additional information. */
  children?: ReactNode;
}) {
  const doubts = doubtsOf(hold);
  const hidden = hold.erased || hold.cut.length > 0;
  return (
    <div className="hold-question">
      <strong>
        <ActionTitle action={hold} />
      </strong>
      <ActionTargetLines action={hold} />
      {hold.estimated_value === null ? null : (
        <div>
          Value: <Hostile text={money(hold.estimated_value, hold.value_currency)} />
        </div>
      )}
      {doubts.map(({ path, says }) => (
        <div key={path} className="hold-doubt">
          <Clamped text={`The arguments say ${path}: ${says}`} lines={2} what={path} />
        </div>
      ))}
      {doubtfulNames(hold).map(([label, words]) => (
        <div key={label} className="hold-doubt">
          <span>{label}:</span>
          <Clamped text={words} what={label} name />
        </div>
      ))}
      {hidden ? <div className="hold-doubt">Not everything that the agent sent is shown.</div> : null}
      {about}
      <p>
        <Hostile text={does} />{' '}
        {hold.stopped ? 'A stop is in force, so it cannot be executed until that is lifted. ' : null}
        {children}
      </p>
    </div>
  );
}
