import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Marked, type Token, type Tokens } from 'marked';

/** A page or picture of the documentation, ready to send. */
export interface DocsFile {
  type: string;
  body: string | Buffer;
  /** A strong entity tag: differs if any byte of the body differs. */
  etag: string;
}

export interface Docs {
  /** The file for a path below /docs; undefined for every path that is not in the list built by `loadDocs`. */
  get(urlPath: string): DocsFile | undefined;
  /** The page for a path that does not exist. */
  readonly notFound: DocsFile;
  /** The paths of all pages and pictures. */
  readonly paths: readonly string[];
}

/** The page that lists the others; the navigation of each page is built from its lists. */
const INDEX = 'docs/README.md';
const PICTURES: Record<string, string> = { '.svg': 'image/svg+xml', '.png': 'image/png', '.webp': 'image/webp' };
/** Files that are served outside /docs. */
const ELSEWHERE: Record<string, string> = { 'server/api/openapi.json': '/openapi.json' };

/**
 * The documentation installed with the program: docs/ and the Markdown files beside it, as HTML. The files are listed
 * once, so a request can only name files in that list; a page is rendered on first request. Raw HTML in the Markdown is
 * shown as text, and links lead only to pages and https addresses.
 */
export function loadDocs(root: string): Docs {
  const files = globSync(['*.md', 'docs/**/*.md', 'docs/pictures/*'], { cwd: root }).sort();
  const byPath = new Map<string, string>();
  for (const file of files) {
    const url = urlOf(file);
    if (url !== undefined) byPath.set(url, file);
  }
  const sources = new Map(
    [...byPath.values()]
      .filter((file) => file.endsWith('.md'))
      .map((file) => [file, readFileSync(path.join(root, file), 'utf8')] as const),
  );
  const navigation = navigationOf(sources);
  const rendered = new Map<string, DocsFile>();
  const style = readFileSync(path.join(import.meta.dirname, 'docs.css'));
  const styleUrl = '/docs/style.css';
  rendered.set(styleUrl, { type: 'text/css; charset=utf-8', body: style, etag: etagOf(style) });

  const frame = (title: string, body: string, url: string): DocsFile => {
    const html = page({ title, body, navigation: drawNavigation(navigation, url) });
    return { type: 'text/html; charset=utf-8', body: html, etag: etagOf(html) };
  };
  return {
    paths: [...byPath.keys()],
    get(urlPath) {
      const url = urlPath === '/docs/' ? '/docs' : urlPath;
      const known = rendered.get(url);
      if (known) return known;
      const file = byPath.get(url);
      if (file === undefined) return undefined;
      const source = sources.get(file);
      let made: DocsFile;
      if (source === undefined) {
        const body = readFileSync(path.join(root, file));
        made = { type: PICTURES[path.extname(file)]!, body, etag: etagOf(body) };
      } else {
        const { title, html } = render(file, source, (target) => linkTo(root, byPath, target));
        made = frame(title, html, url);
      }
      rendered.set(url, made);
      return made;
    },
    notFound: frame(
      'No such page',
      '<h1>No such page</h1><p>The documentation has no page at this address. <a href="/docs">See all pages.</a></p>',
      '',
    ),
  };
}

/** The path at which a documentation file is served: docs/holds.md is /docs/holds, SECURITY.md is /docs/SECURITY. */
function urlOf(file: string): string | undefined {
  const below = file.startsWith('docs/') ? file.slice('docs/'.length) : file;
  if (path.extname(file) in PICTURES) return `/docs/${below}`;
  if (!file.endsWith('.md')) return undefined;
  if (file === INDEX) return '/docs';
  const name = below.slice(0, -'.md'.length);
  return `/docs/${name.endsWith('/README') ? path.dirname(name) : name}`;
}

/** The target of a link to a file of the project; undefined if the program does not serve that file. */
function linkTo(root: string, byPath: ReadonlyMap<string, string>, file: string): string | undefined {
  if (ELSEWHERE[file]) return ELSEWHERE[file];
  const target = existsSync(path.join(root, file, 'README.md')) ? path.join(file, 'README.md') : file;
  const url = urlOf(target);
  return url !== undefined && byPath.has(url) ? url : undefined;
}

/** Renders one page. `linked` resolves a file of the project, by its path from the root, to its address. */
function render(
  file: string,
  source: string,
  linked: (file: string) => string | undefined,
): { title: string; html: string } {
  const slugs = slugger();
  const headings: { level: number; html: string; id: string }[] = [];
  let title = '';
  const resolve = (href: string): string | undefined => {
    if (href.startsWith('#')) return href;
    if (/^(https?:|mailto:)/i.test(href)) return URL.canParse(href) ? href : undefined;
    if (/^[a-z][a-z0-9+.-]*:/i.test(href) || href.startsWith('//')) return undefined;
    const [target, anchor] = href.split('#', 2) as [string, string?];
    const url = linked(path.posix.normalize(path.posix.join(path.posix.dirname(file), target)).replace(/\/$/, ''));
    return url && (anchor === undefined ? url : `${url}#${anchor}`);
  };
  const marked = new Marked({
    gfm: true,
    renderer: {
      heading({ tokens, depth }: Tokens.Heading) {
        const html = this.parser.parseInline(tokens);
        const text = plain(tokens);
        if (depth === 1 && title === '') title = text;
        const id = slugs(text);
        if (depth === 2 || depth === 3) headings.push({ level: depth, html: escapeHtml(text), id });
        return `<h${depth} id="${id}">${html}</h${depth}>\n`;
      },
      link({ href, tokens }: Tokens.Link) {
        const text = this.parser.parseInline(tokens);
        const to = resolve(href);
        if (to === undefined) return text;
        const away = /^https?:/i.test(to) ? ' rel="noreferrer"' : '';
        return `<a href="${escapeHtml(to)}"${away}>${text}</a>`;
      },
      image({ href, text }: Tokens.Image) {
        const to = resolve(href);
        return to?.startsWith('/docs/') ? `<img src="${escapeHtml(to)}" alt="${escapeHtml(text)}">` : escapeHtml(text);
      },
      // comments are for the authors; all other HTML is shown as text
      html({ text }: Tokens.HTML | Tokens.Tag) {
        return escapeHtml(text.replaceAll(/<!--[\s\S]*?-->/g, ''));
      },
      code({ text }: Tokens.Code) {
        return `<pre tabindex="0"><code>${escapeHtml(text)}</code></pre>\n`;
      },
      table({ header, rows }: Tokens.Table) {
        const cell = (tag: string, { tokens, align }: Tokens.TableCell) =>
          `<${tag}${align ? ` class="${align}"` : ''}>${this.parser.parseInline(tokens)}</${tag}>`;
        const named = header.some(({ text }) => text !== '');
        const head = named
          ? `<thead><tr>${header.map((one) => cell(one.text ? 'th' : 'td', one)).join('')}</tr></thead>`
          : '';
        const body = rows.map((row) => `<tr>${row.map((one) => cell('td', one)).join('')}</tr>`).join('\n');
        return `<div class="table" tabindex="0"><table>${head}<tbody>${body}</tbody></table></div>\n`;
      },
    },
  });
  const html = marked.parse(source, { async: false });
  return {
    title: title || path.basename(file, '.md'),
    html: html.replace(/^<h1[\s\S]*?<\/h1>\n|^/, (heading) => heading + contents(headings)),
  };
}

/** The table of contents of a page that is long enough to need one. */
function contents(headings: readonly { level: number; html: string; id: string }[]): string {
  if (headings.length < 3) return '';
  const items = headings.map(({ level, html, id }) => `<li class="level-${level}"><a href="#${id}">${html}</a></li>`);
  return `<nav class="contents" aria-label="On this page"><strong>On this page</strong><ol>${items.join('')}</ol></nav>\n`;
}

type Navigation = { group: string; pages: { url: string; title: string }[] }[];

/** Parses the index: a bold line begins a group, and every link in a list below it is a page of that group. */
function navigationOf(sources: ReadonlyMap<string, string>): Navigation {
  const found: Navigation = [{ group: '', pages: [{ url: '/docs', title: 'Documentation' }] }];
  const marked = new Marked({ gfm: true });
  const links = (tokens: readonly Token[]): Tokens.Link[] =>
    tokens.flatMap((token) => {
      if (token.type === 'link') return [token as Tokens.Link];
      if (token.type === 'list') return links((token as Tokens.List).items);
      return 'tokens' in token && token.tokens ? links(token.tokens) : [];
    });
  for (const token of marked.lexer(sources.get(INDEX) ?? '')) {
    if (token.type === 'paragraph') {
      const [only, ...more] = token.tokens ?? [];
      if (only?.type === 'strong' && more.length === 0) found.push({ group: plain(only.tokens ?? []), pages: [] });
    }
    if (token.type !== 'list') continue;
    for (const { href, tokens } of links([token])) {
      const file = path.posix.normalize(path.posix.join(path.posix.dirname(INDEX), href));
      if (sources.has(file)) found.at(-1)!.pages.push({ url: urlOf(file)!, title: plain(tokens) });
    }
  }
  return found;
}

function drawNavigation(navigation: Navigation, current: string): string {
  return navigation
    .map(({ group, pages }) => {
      const items = pages.map(({ url, title }) => {
        const here = url === current ? ' aria-current="page"' : '';
        return `<li><a href="${escapeHtml(url)}"${here}>${escapeHtml(title)}</a></li>`;
      });
      return `${group ? `<strong>${escapeHtml(group)}</strong>` : ''}<ul>${items.join('')}</ul>`;
    })
    .join('');
}

function page({ title, body, navigation }: { title: string; body: string; navigation: string }): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escapeHtml(title)} · Agent Governance</title>
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><a href="/">Agent Governance</a> <a href="/docs">Documentation</a></header>
<div class="columns">
<main id="content" tabindex="-1">
${body}</main>
<nav class="pages" aria-label="Documentation">${navigation}</nav>
</div>
</body>
</html>
`;
}

/** Heading anchors as GitHub makes them, so that the same links work in both places. */
function slugger(): (text: string) => string {
  const seen = new Map<string, number>();
  return (text) => {
    const slug = text
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, '')
      .replaceAll(' ', '-');
    const times = seen.get(slug) ?? 0;
    seen.set(slug, times + 1);
    return times === 0 ? slug : `${slug}-${times}`;
  };
}

/** The text of inline tokens without their markup. */
function plain(tokens: readonly Token[]): string {
  return tokens
    .map((token) => {
      if ('tokens' in token && token.tokens) return plain(token.tokens);
      return 'text' in token ? unescapeEntities(String(token.text)) : '';
    })
    .join('');
}

const unescapeEntities = (text: string) =>
  text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&quot;', '"').replaceAll('&amp;', '&');

const escapeHtml = (text: string) =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');

const etagOf = (body: string | Buffer) => `"${createHash('sha256').update(body).digest('base64url').slice(0, 27)}"`;
