import { CopyButton } from './copy.tsx';
import { HostileLines } from './hostile.tsx';

/** Machine-readable text with a copy button. What cannot be seen in it has a code; the copy is the text itself. */
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
  return (
    <div className="code">
      {/* biome-ignore-start lint/a11y: it may scroll, so the keyboard must reach it, and then it has a name */}
      <section tabIndex={0} aria-label={label} style={{ maxHeight, overflow: 'auto' }}>
        <pre data-wrap={wrap || undefined}>
          <HostileLines text={text} />
        </pre>
      </section>
      {/* biome-ignore-end lint/a11y: as above */}
      <CopyButton text={text} label={`Copy ${label}`} />
    </div>
  );
}
