import { Anchor, type AnchorProps, Button, type ButtonProps } from '@mantine/core';
import { createLink } from '@tanstack/react-router';
import type { AnchorHTMLAttributes, ReactNode, Ref } from 'react';

type Html = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'style' | 'color'> & { ref?: Ref<HTMLAnchorElement> };

/** A link to a page of the dashboard, its path and parameters checked by the compiler. */
export const PageLink = createLink((props: AnchorProps & Html) => (
  // within text color alone does not make a link; what looks like its surroundings is a title that stands for itself
  <Anchor underline={props.c === 'inherit' ? 'hover' : 'always'} {...props} />
));

/** A link to a page of the documentation, in a tab of its own so that nothing half done is lost. */
export const DocsLink = ({ path, children }: { path: string; children: ReactNode }) => (
  <Anchor href={`/docs/${path}`} target="_blank">
    {children}
  </Anchor>
);

/** A link to a page of the dashboard with the look of a button. */
export const ButtonLink = createLink((props: ButtonProps & Html) => <Button component="a" {...props} />);
