import { Anchor, Button, type ButtonProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import type { AnchorHTMLAttributes, ReactNode, Ref } from 'react';

type Html = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'style' | 'color'> & { ref?: Ref<HTMLAnchorElement> };

interface Look {
  /**
   * The color of the surrounding text: within text, color alone does not identify a link, so this is for a title that stands
   * alone.
   */
  c?: 'inherit';
  fw?: 600;
  size?: 'sm';
  display?: 'block';
  /** The font of the surrounding text. */
  inherit?: boolean;
}

/** A list has hundreds of links. An anchor of the component library takes several times as long to render. */
const Plain = ({ c, fw, size, display, inherit, className = '', ...html }: Look & Html) => (
  <a
    className={`link ${className}`}
    data-color={c}
    data-weight={fw}
    data-size={inherit ? 'inherit' : size}
    data-display={display}
    {...html}
  />
);

/** A link to a page of the dashboard, its path and parameters checked by the compiler. */
export const PageLink = createLink(Plain);

/** A link to a documentation page in a new tab, so that unsaved work is not lost. */
export const DocsLink = ({ path, children }: { path: string; children: ReactNode }) => (
  <Anchor href={`/docs/${path}`} target="_blank">
    {children}
  </Anchor>
);

/** A link to a page of the dashboard that looks like a button. */
export const ButtonLink = createLink((props: ButtonProps & Html) => <Button component="a" {...props} />);

/** The name of a row as a button, for rows whose details open on the same page. */
export const RowButton = (props: { onClick: () => void; 'aria-label'?: string; children: ReactNode }) => (
  <button type="button" className="link" data-color="inherit" data-weight={600} data-display="block" {...props} />
);
