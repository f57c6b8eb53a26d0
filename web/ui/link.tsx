import { Anchor, type AnchorProps, Button, type ButtonProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import type { AnchorHTMLAttributes, ReactNode, Ref } from 'react';

type Html = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'style' | 'color'> & { ref?: Ref<HTMLAnchorElement> };

/** A link to a page of the dashboard, its path and parameters checked by the compiler. */
export const PageLink = createLink((props: AnchorProps & Html) => (
  // within text color alone does not make a link; what looks like its surroundings is a title that stands for itself
  <Anchor underline={props.c === 'inherit' ? 'hover' : 'always'} {...props} />
));

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
  <Anchor component="button" type="button" c="inherit" fw={600} ta="left" display="block" maw="100%" {...props} />
);
