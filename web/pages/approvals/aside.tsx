import { Button } from '@mantine/core';
import { SPANS, type Span } from '../../lib/aside.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { useAside } from '../../lib/use-aside.ts';
import { rescueFocus } from '../../ui/focus.ts';
import { When } from '../../ui/time.tsx';
import type { Hold } from './view.tsx';

export const toastAside = () =>
  toastDone('Set aside', 'It stays open for others. It returns to your list before it expires, or when it changes.');

/** Takes a hold out of the way of the signed-in person for a while; it keeps waiting, and others see no difference. */
export function SetAside({ hold, onAside }: { hold: Hold; onAside: (() => void) | undefined }) {
  const me = useMe();
  const aside = useAside();
  if (hold.status !== 'held' || !me.has('approver') || hold.votes?.some(({ user_id }) => user_id === me.id))
    return null;
  const until = aside.of(hold);
  if (until !== undefined) {
    return (
      <div className="hold-aside">
        <span>
          Set aside by you. It returns <When at={new Date(until).toISOString()} />, or when it changes.
        </span>
        <Button
          size="compact-sm"
          variant="default"
          onClick={() => {
            aside.back(hold);
            setTimeout(rescueFocus);
          }}
        >
          Put it back
        </Button>
      </div>
    );
  }
  if (!aside.possible(hold)) return null;
  return (
    <fieldset className="hold-aside">
      <legend className="unseen">Set aside for later</legend>
      <span aria-hidden>Not now: set aside for</span>
      <div className="segments">
        {(Object.keys(SPANS) as Span[]).map((span) => (
          <button
            key={span}
            type="button"
            aria-label={`Set aside for ${span}`}
            onClick={() => {
              aside.put(hold, span);
              toastAside();
              onAside?.();
              setTimeout(rescueFocus);
            }}
          >
            {span}
          </button>
        ))}
      </div>
    </fieldset>
  );
}
