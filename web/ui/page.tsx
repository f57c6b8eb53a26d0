import { Text, Title } from '@mantine/core';
import { Fragment, type ReactNode, useEffect } from 'react';
import { visible } from '../../server/lib/visible.ts';
import { DocsLink } from './link.tsx';

/** A page with its heading, which is also the title of the tab. */
export function Page({
  title,
  tab,
  lead,
  docs,
  actions,
  children,
}: {
  title: ReactNode;
  /** The title of the tab, if `title` is not a string. */
  tab?: string;
  lead?: ReactNode;
  /** Pages of the documentation that help here: [path below /docs, text]. */
  docs?: readonly (readonly [path: string, text: string])[];
  actions?: ReactNode;
  children: ReactNode;
}) {
  const name = tab ?? (typeof title === 'string' ? title : '');
  useEffect(() => {
    document.title = name ? `${visible(name)} · Agent Governance` : 'Agent Governance';
  }, [name]);
  return (
    <>
      <div className="page-head">
        <div>
          <Title order={1}>{title}</Title>
          {lead ? (
            <Text c="dimmed" component="div" mt={2}>
              {lead}
            </Text>
          ) : null}
          {docs ? (
            <Text size="sm" mt={2}>
              {docs.map(([path, text], n) => (
                <Fragment key={path}>
                  {n > 0 ? ' · ' : ''}
                  <DocsLink path={path}>{text}</DocsLink>
                </Fragment>
              ))}
            </Text>
          ) : null}
        </div>
        {actions ? <div style={{ display: 'flex', gap: 8, flexWrap: 'wrap' }}>{actions}</div> : null}
      </div>
      {children}
    </>
  );
}
