import { useLayoutEffect, useRef, useState } from 'react';
import { CopyButton } from './copy.tsx';
import { HostileLines } from './hostile.tsx';

/**
 * Machine-readable text with a copy button. Invisible characters are shown as codes; the copy is the text itself. If it is higher
 * than `maxHeight` it says so, and how much there is, so that no one takes the beginning for the whole.
 */
export function CodeBlock({
  text,
  label,
  wrap = false,
  maxHeight,
}: {
  text: string;
  /** The accessible name. */
  label: string;
  wrap?: boolean;
  maxHeight?: number;
}) {
  const box = useRef<HTMLElement>(null);
  const [cut, setCut] = useState(false);
  const [open, setOpen] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another text has another height
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || open || maxHeight === undefined) return;
    const look = () => setCut(element.scrollHeight > element.clientHeight + 1);
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, [text, open, maxHeight]);
  return (
    <div className="code" data-cut={(cut && !open) || undefined}>
      {/* biome-ignore-start lint/a11y: it may scroll, so the keyboard must reach it, and then it has a name */}
      <section
        ref={box}
        tabIndex={0}
        aria-label={label}
        style={{ maxHeight: open ? undefined : maxHeight, overflow: 'auto' }}
      >
        <pre data-wrap={wrap || undefined}>
          <HostileLines text={text} />
        </pre>
      </section>
      {/* biome-ignore-end lint/a11y: as above */}
      <CopyButton text={text} label={`Copy ${label}`} />
      {cut ? (
        <button type="button" className="code-more" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? 'Show less' : `This is only the beginning: show all ${text.length.toLocaleString()} characters`}
        </button>
      ) : null}
    </div>
  );
}
