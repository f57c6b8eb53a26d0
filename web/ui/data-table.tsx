import { Button, Skeleton } from '@mantine/core';
import { Fragment, type MouseEvent, type ReactNode, useState } from 'react';
import { rescueFocus } from './focus.ts';
import { ErrorState } from './states.tsx';

export interface Column<Row> {
  header: string;
  /** Renders the cell. The main column contains the link of the row, if it has one. */
  cell: (row: Row) => ReactNode;
  /** The column that names the row; on narrow screens it comes first, without its header. */
  main?: boolean;
  align?: 'right';
  /** Needs no label on narrow screens, because its content is self-explanatory. */
  bare?: boolean;
  width?: number | string;
}

/** The header of the column with the row's buttons. */
const ACTIONS = 'Actions';

/**
 * A table of similar items. While they load it shows skeletons, without any the empty state, and if loading fails the error with
 * its request id. On narrow screens each row becomes a block with labels.
 */
export function DataTable<Row>({
  label,
  columns,
  rows,
  rowKey,
  error,
  retry,
  empty,
  onOpen,
  selected,
  isNew,
  group,
  fixed = false,
  first,
}: {
  /** The accessible name of the table. */
  label: string;
  columns: readonly Column<Row>[];
  /** Undefined while loading. */
  rows: readonly Row[] | undefined;
  rowKey: (row: Row) => string;
  error?: unknown;
  retry?: () => void;
  empty: ReactNode;
  /** Runs on a click anywhere in a row; on the keyboard, the row's own link or button does the same. */
  onOpen?: (row: Row) => void;
  selected?: string;
  /** The row was added since the page was opened. */
  isNew?: (row: Row) => boolean;
  /** The group of a row, such as its day: a heading appears above the first of consecutive rows with the same one. */
  group?: (row: Row) => string;
  /** Columns keep their widths whatever they contain, for texts that others wrote; those without a width share the rest. */
  fixed?: boolean;
  /** How many rows are shown until the user asks for the rest; for lists that arrive whole. */
  first?: number;
}) {
  const [whole, showWhole] = useState(false);
  if (error && !rows) return <ErrorState error={error} retry={retry} />;
  if (rows?.length === 0) return <div className="grid-frame">{empty}</div>;
  const shown = whole ? rows : rows?.slice(0, first);
  const more = (rows?.length ?? 0) - (shown?.length ?? 0);
  const open = (row: Row) => (event: MouseEvent) => {
    if ((event.target as Element).closest('a, button, input, label')) return;
    if (window.getSelection()?.toString()) return;
    onOpen?.(row);
  };
  return (
    <div className="grid-frame">
      <table className="grid" data-fixed={fixed || undefined} aria-label={label} aria-busy={!rows}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.header} scope="col" data-align={column.align} style={{ width: column.width }}>
                {column.header}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown?.map((row, n) => (
            <Fragment key={rowKey(row)}>
              {group && (n === 0 || group(shown[n - 1]!) !== group(row)) ? (
                <tr className="grid-group">
                  <th scope="rowgroup" colSpan={columns.length}>
                    {group(row)}
                  </th>
                </tr>
              ) : null}
              <tr
                data-link={onOpen ? true : undefined}
                aria-selected={selected === undefined ? undefined : selected === rowKey(row)}
                className={isNew?.(row) ? 'arrived' : undefined}
                onClick={onOpen && open(row)}
              >
                {columns.map((column) => (
                  <td
                    key={column.header}
                    data-label={column.bare || column.header === ACTIONS ? undefined : column.header}
                    data-main={column.main || undefined}
                    data-actions={column.header === ACTIONS || undefined}
                    data-align={column.align}
                  >
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            </Fragment>
          )) ??
            [90, 70, 80, 60, 75].map((width) => (
              <tr key={width}>
                {columns.map((column) => (
                  <td key={column.header}>
                    <Skeleton height={12} my={4} width={`${width}%`} />
                  </td>
                ))}
              </tr>
            ))}
        </tbody>
      </table>
      {more > 0 ? (
        <Button
          variant="subtle"
          fullWidth
          onClick={() => {
            showWhole(true);
            setTimeout(rescueFocus);
          }}
        >
          Show {more.toLocaleString()} more
        </Button>
      ) : null}
    </div>
  );
}
