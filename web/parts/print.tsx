import { Button } from '@mantine/core';
import { IconPackageExport, IconPrinter } from '@tabler/icons-react';
import { encode } from 'uqr';
import { useMe } from '../lib/session.ts';
import { fullTime } from '../lib/time.ts';
import { Hostile } from '../ui/hostile.tsx';
import { ButtonLink } from '../ui/link.tsx';
import './print.css';

export function PrintButton() {
  return (
    <Button variant="default" leftSection={<IconPrinter size={16} aria-hidden />} onClick={() => window.print()}>
      Print
    </Button>
  );
}

/** Leads to the export of a signed package of what the page shows. */
export function EvidenceButton({
  of,
}: {
  of: { from: string; to: string; purpose: string } | { session: string; purpose: string };
}) {
  return (
    <ButtonLink to="/forensics" search={of} variant="default" leftSection={<IconPackageExport size={16} aria-hidden />}>
      Evidence
    </ButtonLink>
  );
}

/**
 * What only the printed page has: ids and hashes in full, the one to compare as a QR code, and where and by whom it was printed.
 */
export function PrintSheet({
  values,
  fingerprint,
}: {
  values: Readonly<Record<string, string | null | undefined>>;
  /** What a reader compares with the original: its name, and the value. */
  fingerprint: { name: string; value: string };
}) {
  const me = useMe();
  const shown = { ...values, [fingerprint.name]: fingerprint.value };
  return (
    <div className="print-sheet" aria-hidden>
      <table>
        <tbody>
          {Object.entries(shown).map(([name, value]) =>
            value ? (
              <tr key={name}>
                <th>{name}</th>
                <td>
                  <Hostile text={value} />
                </td>
              </tr>
            ) : null,
          )}
        </tbody>
      </table>
      <div className="print-code">
        <Qr text={fingerprint.value} />
        <div>
          The code holds the {fingerprint.name.toLowerCase()}. A print is no evidence: a signed package is, which anyone
          can check without the server.
          <br />
          Printed {fullTime(new Date().toISOString(), 'utc')} by {me.name || me.email}, tenant {me.tenant}
          <br />
          {window.location.href}
        </div>
      </div>
    </div>
  );
}

/** A QR code that scanners read as this text. */
export function Qr({ text, size = 132 }: { text: string; size?: number }) {
  const { data, size: modules } = encode(text, { ecc: 'M', border: 4 });
  const path = data.flatMap((row, y) => row.flatMap((dark, x) => (dark ? `M${x} ${y}h1v1h-1z` : []))).join('');
  return (
    <svg
      className="qr"
      width={size}
      height={size}
      viewBox={`0 0 ${modules} ${modules}`}
      role="img"
      aria-label="QR code"
      shapeRendering="crispEdges"
    >
      <rect width={modules} height={modules} fill="#fff" />
      <path d={path} fill="#000" />
    </svg>
  );
}
