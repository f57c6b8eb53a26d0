import { sha256 } from './crypto.ts';
import { contentSecurityPolicy } from './security-headers.ts';

/** Text that is already HTML. Only `html` creates it, so that everything else put into a page is escaped. */
export class Markup {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

const ENTITIES: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
const escapeHtml = (text: string) => text.replace(/[&<>"']/g, (character) => ENTITIES[character]!);

type Part = string | number | Markup | undefined | readonly Markup[];

/** HTML from a template: every value is escaped, unless it came from here. Values go in text or in quotes. */
export function html(strings: TemplateStringsArray, ...values: readonly Part[]): Markup {
  const show = (value: Part): string => {
    if (value === undefined) return '';
    if (value instanceof Markup) return value.text;
    if (Array.isArray(value)) return value.map(show).join('');
    return escapeHtml(String(value));
  };
  return new Markup(strings.map((text, i) => text + (i < values.length ? show(values[i]) : '')).join(''));
}

const STYLE = `
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: Canvas; color: CanvasText; }
main { width: min(26rem, calc(100vw - 3rem)); padding: 2rem 0; }
h1 { font-size: 1.375rem; margin: 0 0 1rem; }
label { display: block; margin: 0 0 1rem; }
input { box-sizing: border-box; width: 100%; font: inherit; padding: .5rem .75rem; border: 1px solid GrayText; border-radius: .375rem; }
button { font: inherit; font-weight: 600; padding: .625rem 1.25rem; border: 0; border-radius: .375rem; background: #1c5fd1; color: #fff; cursor: pointer; }
button:focus-visible, input:focus-visible, a:focus-visible { outline: 3px solid #7aa7f0; outline-offset: 2px; }
.quiet { color: GrayText; font-size: .875rem; }
`;

/** A whole page of the server's own: without scripts, and with its only style allowed by hash. */
export function page(title: string, body: Markup): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>${title}</title>
<style>${new Markup(STYLE)}</style>
</head>
<body>
<main>
<h1>${title}</h1>
${body}
</main>
</body>
</html>
`.text;
}

/**
 * Page headers, on top of those of the API. The page's address may contain a token: other sites learn only the server's origin,
 * and no page links elsewhere. Not `no-referrer`: browsers would then send `Origin: null` with the page's form, and the form
 * would be refused as another site's.
 */
export const PAGE_HEADERS: Readonly<Record<string, string>> = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy': contentSecurityPolicy({
    'default-src': ["'none'"],
    'style-src': [`'sha256-${sha256(STYLE).toString('base64')}'`],
    'form-action': ["'self'"],
    'base-uri': ["'none'"],
    'frame-ancestors': ["'none'"],
  }),
  'referrer-policy': 'strict-origin',
};

/** Whether the client is a browser that shows the response to a person. */
export function wantsPage(accept: string | undefined): boolean {
  return /(^|,)\s*text\/html\s*(;|,|$)/i.test(accept ?? '');
}

/** Whether the client is a program that asks for JSON where others get a page. */
export function wantsJson(accept: string | undefined): boolean {
  return (accept ?? '').includes('application/json') && !wantsPage(accept);
}
