import { Button } from '@mantine/core';
import { useAside } from '../../lib/aside.ts';
import { rescueFocus } from '../../ui/focus.ts';
import { When } from '../../ui/time.tsx';
import type { Hold } from './view.tsx';

/** Hides a hold from the signed-in person for a while; it keeps waiting, and others see no difference. */
export function SetAside({ hold, onAside }: { hold: Hold; onAside: (() => void) | undefined }) {
  const aside = useAside();
  if (hold.aside_until !== undefined) {
    return (
      <div className="hold-aside no-print">
        <span>
          Set aside by you. It returns <When at={hold.aside_until} />, or when it changes.
        </span>
        <Button
          size="compact-sm"
          variant="default"
          loading={aside.busy}
          onClick={async () => {
            await aside.back(hold);
            setTimeout(rescueFocus);
          }}
        >
          Put it back
        </Button>
      </div>
    );
  }
  const spans = aside.spans(hold);
  if (spans.length === 0) return null;
  return (
    <fieldset className="hold-aside no-print" disabled={aside.busy}>
      <legend className="unseen">Set aside for later</legend>
      <span aria-hidden>Not now: set aside</span>
      <div className="segments">
        {spans.map((span) => (
          <button
            key={span}
            type="button"
            aria-label={`Set aside ${SAID[span]}`}
            onClick={async () => {
              await aside.put(hold, span);
              onAside?.();
              setTimeout(rescueFocus);
            }}
          >
            {SAID[span]}
          </button>
        ))}
      </div>
    </fieldset>
  );
}

const SAID = { hour: 'for an hour', morning: 'until tomorrow morning', change: 'until it changes' } as const;
