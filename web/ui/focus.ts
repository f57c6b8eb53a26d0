/** The id of the main content of a page. */
export const CONTENT = 'content';

/** Moves the focus to the start of the page. */
export function focusContent(): void {
  document.getElementById(CONTENT)?.focus({ preventScroll: true });
}

/** Moves the focus to the start of the page if the focused element is gone. */
export function rescueFocus(): void {
  if (document.activeElement === null || document.activeElement === document.body) focusContent();
}
