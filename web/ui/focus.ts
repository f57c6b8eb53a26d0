/** The id of what a page shows beside the navigation. */
export const CONTENT = 'content';

/** The focus to where the page begins. */
export function focusContent(): void {
  document.getElementById(CONTENT)?.focus({ preventScroll: true });
}

/** The focus to where the page begins, when what had it is gone. */
export function rescueFocus(): void {
  if (document.activeElement === null || document.activeElement === document.body) focusContent();
}
