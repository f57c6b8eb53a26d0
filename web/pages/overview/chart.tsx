import { Text } from '@mantine/core';
import type { Decision } from '../../../server/domain/decision.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { DECISION, DecisionTag } from '../../ui/status.tsx';
import './chart.css';

const KINDS = Object.keys(DECISION) as Decision[];
export type Bucket = { at: string } & Record<Decision, number>;

/** Stacked bars: actions that did not pass on top of those that did. A hidden table has the same numbers. */
export function DecisionChart({ buckets, hours }: { buckets: readonly Bucket[]; hours: number }) {
  const [zone] = useZone();
  const sums = Object.fromEntries(KINDS.map((kind) => [kind, buckets.reduce((n, b) => n + b[kind], 0)]));
  const heights = buckets.map((bucket) => KINDS.reduce((n, kind) => n + bucket[kind], 0));
  const most = Math.max(1, ...heights);
  const label = (at: string) => {
    const text = fullTime(at, zone);
    return hours <= 48 ? text.slice(11, 16) : text.slice(5, 10);
  };
  return (
    <figure className="chart">
      <div className="chart-bars" aria-hidden="true">
        <span className="chart-most">{most.toLocaleString()}</span>
        {buckets.map((bucket) => (
          <div key={bucket.at} className="chart-bar" title={titleOf(bucket, zone)}>
            {KINDS.map((kind) =>
              bucket[kind] > 0 ? (
                <i
                  key={kind}
                  data-tone={DECISION[kind][1]}
                  style={{ height: `${Math.max(1.5, (bucket[kind] / most) * 100)}%` }}
                />
              ) : null,
            )}
          </div>
        ))}
      </div>
      <div className="chart-axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75].map((part) => (
          <span key={part}>{label(buckets[Math.floor(part * buckets.length)]?.at ?? '')}</span>
        ))}
        <span>now</span>
      </div>
      <ul className="chart-legend">
        {KINDS.map((kind) => (
          <li key={kind}>
            <DecisionTag decision={kind} />
            <Text component="span" fw={650} size="lg">
              {sums[kind]?.toLocaleString()}
            </Text>
          </li>
        ))}
      </ul>
      {/* a table takes the width that it needs, regardless of its style */}
      <div className="unseen">
        <table>
          <caption>Decisions over the last {hours} hours</caption>
          <thead>
            <tr>
              <th scope="col">from</th>
              {KINDS.map((kind) => (
                <th key={kind} scope="col">
                  {DECISION[kind][0]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {buckets.map((bucket) => (
              <tr key={bucket.at}>
                <th scope="row">{fullTime(bucket.at, zone)}</th>
                {KINDS.map((kind) => (
                  <td key={kind}>{bucket[kind]}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </figure>
  );
}

function titleOf(bucket: Bucket, zone: 'local' | 'utc'): string {
  const parts = KINDS.filter((kind) => bucket[kind] > 0).map((kind) => `${DECISION[kind][0]}: ${bucket[kind]}`);
  return [`from ${fullTime(bucket.at, zone).slice(0, 16)}`, ...(parts.length > 0 ? parts : ['no decisions'])].join(
    '\n',
  );
}
