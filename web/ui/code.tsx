import { CopyButton } from './copy.tsx';

/** A text of a machine, to read and to copy. */
export function CodeBlock({
  text,
  label,
  wrap = false,
  maxHeight,
}: {
  text: string;
  /** What it is, for who cannot see it. */
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
