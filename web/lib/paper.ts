/** Prints every page in the light scheme, whatever the screen uses. */
export function printLight(): void {
  const root = document.documentElement;
  const SCHEME = 'data-mantine-color-scheme';
  let scheme: string | null = null;
  window.addEventListener('beforeprint', () => {
    scheme ??= root.getAttribute(SCHEME);
    root.setAttribute(SCHEME, 'light');
  });
  window.addEventListener('afterprint', () => {
    if (scheme) root.setAttribute(SCHEME, scheme);
    scheme = null;
  });
}
