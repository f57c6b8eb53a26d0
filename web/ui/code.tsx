import { CopyButton } from './copy.tsx';

/** Machine-readable text with a copy button. */
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
        <pre data-wrap={wrap || undefined}>{text}</pre>
      </section>
      {/* biome-ignore-end lint/a11y: as above */}
      <CopyButton text={text} label={`Copy ${label}`} />
    </div>
  );
}
