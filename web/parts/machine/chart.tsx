import './machine.css';
import { useMediaQuery } from '@mantine/hooks';
import { useId, useMemo } from 'react';
import { type ChartShape, EVENT_LINE, layOut } from '../../../machines/layout.ts';

export const wordOf = (id: string): string => id.replaceAll('_', ' ');

/** Labels for events whose names in the state machine do not explain what happens. */
const EVENT_LABELS: Readonly<Record<string, string>> = {
  satisfy: 'report condition',
  recount: 'count votes again',
  wake: 'time passes',
  attempted: 'attempt',
  stop: 'pause',
  redeliver: 'send again',
};
/** The label of a state machine's event. */
export const eventLabel = (event: string): string => EVENT_LABELS[event] ?? wordOf(event);

/**
 * A state machine as a diagram. The caller must also show the same content as text, for assistive technology. The state
 * `current` and its outgoing transitions are highlighted.
 */
export function MachineChart({ chart, current, label }: { chart: ChartShape; current?: string; label: string }) {
  const narrow = useMediaQuery('(max-width: 62em)') ?? false;
  const drawing = useMemo(() => {
    const transitions = chart.transitions.map((one) => ({ ...one, event: eventLabel(one.event) }));
    return layOut({ ...chart, transitions }, narrow ? 'down' : 'right');
  }, [chart, narrow]);
  const finals = new Set(
    chart.states.map(({ id }) => id).filter((id) => !chart.transitions.some(({ from }) => from === id)),
  );
  const id = useId();
  const tip = (name: string, className: string) => (
    <marker id={`${id}${name}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path d="M0 0.8 L7.5 4 L0 7.2 Z" className={className} />
    </marker>
  );
  // transitions out of the current state are drawn on top
  const edges = drawing.edges.toSorted((a, b) => Number(a.from === current) - Number(b.from === current));
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it may scroll, so the keyboard must reach it
    <section className="chart" tabIndex={0} aria-label={label}>
      <svg
        width={drawing.width}
        height={drawing.height}
        // a slightly too wide drawing is scaled down; a wider one scrolls
        style={{ maxWidth: `max(100%, ${Math.round(drawing.width * 0.85)}px)`, height: 'auto' }}
        viewBox={`0 0 ${drawing.width} ${drawing.height}`}
        role="img"
        aria-label={`${label}; described as text below`}
      >
        <defs>
          {tip('tip', 'chart-tip')}
          {tip('open', 'chart-tip-open')}
        </defs>
        <path d={drawing.start} className="chart-start" markerEnd={`url(#${id}tip)`} />
        {edges.map(({ from, to, events, label, path }) => {
          const open = from === current;
          return (
            <g
              key={`${from} ${to}`}
              className="chart-edge"
              data-open={open || undefined}
              data-closed={(current !== undefined && !open) || undefined}
            >
              <path d={path} markerEnd={`url(#${id}${open ? 'open' : 'tip'})`} />
              <rect x={label.x} y={label.y} width={label.width} height={label.height} rx={3} />
              {events.map((event, n) => (
                <text
                  key={event}
                  x={label.x + label.width / 2}
                  y={label.y + EVENT_LINE * (n + 0.8)}
                  textAnchor="middle"
                >
                  {event}
                </text>
              ))}
            </g>
          );
        })}
        {drawing.states.map(({ id: state, x, y, width, height }) => (
          <g
            key={state}
            className="chart-state"
            data-current={state === current || undefined}
            data-final={finals.has(state) || undefined}
          >
            {state === current ? (
              <rect className="chart-halo" x={x - 4} y={y - 4} width={width + 8} height={height + 8} rx={12} />
            ) : null}
            <rect x={x} y={y} width={width} height={height} rx={8} />
            <text x={x + width / 2} y={y + height / 2} dy="0.35em" textAnchor="middle">
              {wordOf(state)}
            </text>
          </g>
        ))}
      </svg>
    </section>
  );
}
