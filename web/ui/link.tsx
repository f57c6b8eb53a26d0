import { Anchor, Button, type ButtonProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import type { AnchorHTMLAttributes, ReactNode, Ref } from 'react';

type Html = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'style' | 'color'> & { ref?: Ref<HTMLAnchorElement> };

interface Look {
  /** As what is around it: within text color alone does not make a link, so this is for a title that stands for itself. */
  c?: 'inherit';
  fw?: 600;
  size?: 'sm';
  display?: 'block';
  /** With the font of what is around it. */
  inherit?: boolean;
}

/** A list has hundreds of them. An anchor of the component library takes several times as long to render. */
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

/** A link to a page of the dashboard with the look of a button. */
export const ButtonLink = createLink((props: ButtonProps & Html) => <Button component="a" {...props} />);

/** The name of a row as a button, for a row whose details open on the same page. */
export const RowButton = (props: { onClick: () => void; 'aria-label'?: string; children: ReactNode }) => (
  <button type="button" className="link" data-color="inherit" data-weight={600} data-display="block" {...props} />
);
