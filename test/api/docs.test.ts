import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { type Docs, loadDocs } from '../../server/api/docs.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
const root = path.resolve(import.meta.dirname, '../..');
const docs = loadDocs(root);
const pages = docs.paths.filter((url) => docs.get(url)!.type.startsWith('text/html'));

const linksOf = (html: string) => [...html.matchAll(/ (?:href|src)="([^"]+)"/g)].map(([, link]) => link!);
const idsOf = (html: string) => [...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id!);

test('every page and picture is public, and its copy is revalidated', async () => {
  expect(pages.length).toBeGreaterThan(5);
  for (const url of docs.paths) {
    const answer = await fetch(server.url + url);
    expect(answer.status, url).toBe(200);
    expect(answer.headers.get('content-type'), url).toBe(docs.get(url)!.type);
    expect(answer.headers.get('content-security-policy'), url).toMatch(/^default-src 'none'/);
    expect(answer.headers.get('content-security-policy'), url).not.toMatch(/script|unsafe-eval/);
    expect(answer.headers.get('cache-control'), url).toBe('no-cache');
    const again = await fetch(server.url + url, { headers: { 'if-none-match': answer.headers.get('etag')! } });
    expect(again.status, url).toBe(304);
    // a browser gives its copy the headers of this answer
    for (const name of ['content-security-policy', 'cache-control', 'etag']) {
      expect(again.headers.get(name), url).toBe(answer.headers.get(name));
    }
    expect(await again.text()).toBe('');
  }
});

test('no link and no anchor between the pages is broken, and every page is linked from another', () => {
  const broken: string[] = [];
  const linked = new Set(['/docs']);
  for (const url of pages) {
    const html = String(docs.get(url)!.body);
    const ids = idsOf(html);
    expect(new Set(ids).size, `${url} has each id once`).toBe(ids.length);
    for (const link of linksOf(html)) {
      const { origin, pathname, hash } = new URL(link, `http://docs${url}`);
      if (origin !== 'http://docs') {
        expect(link).toMatch(/^(https?|mailto):/);
        continue;
      }
      if (['/', '/openapi.json'].includes(pathname)) continue;
      if (pathname !== url) linked.add(pathname);
      const target = docs.get(pathname);
      const anchor = decodeURIComponent(hash.slice(1));
      if (!target || (anchor && !idsOf(String(target.body)).includes(anchor))) broken.push(`${url}: ${link}`);
    }
  }
  expect(broken).toEqual([]);
  expect(docs.paths.filter((url) => !linked.has(url))).toEqual([]);
});

test('every link target in the Markdown exists, even if the program does not serve it', () => {
  const broken: string[] = [];
  for (const url of pages) {
    const name = url === '/docs' ? 'README' : url.slice('/docs/'.length);
    const file = [`docs/${name}.md`, `docs/${name}/README.md`, `${name}.md`].find((one) =>
      existsSync(path.join(root, one)),
    );
    const source = readFileSync(path.join(root, file!), 'utf8').replaceAll(/^```[\s\S]*?^```/gm, '');
    for (const [, link] of source.matchAll(/\]\(([^)\s#]+)[^)]*\)/g)) {
      if (/^[a-z]+:/.test(link!)) continue;
      if (!existsSync(path.join(root, path.dirname(file!), link!))) broken.push(`${file}: ${link}`);
    }
  }
  expect(broken).toEqual([]);
});

test('anything not in the list is a page with 404, however its path is written', async () => {
  const { port } = new URL(server.url);
  const { request } = await import('node:http');
  // fetch would resolve the dots itself
  const get = (url: string) =>
    new Promise<{ status: number; text: string }>((resolve, reject) => {
      request({ port, path: url, headers: { accept: 'text/html' } }, (answer) => {
        let text = '';
        answer.setEncoding('utf8').on('data', (part) => {
          text += part;
        });
        answer.on('end', () => resolve({ status: answer.statusCode!, text }));
      })
        .on('error', reject)
        .end();
    });
  for (const url of [
    '/docs/nothing',
    '/docs/../package.json',
    '/docs/%2e%2e/package.json',
    '/docs/..%2fpackage.json',
    '/docs/pictures/../../package.json',
    '/docs/holds.md',
    '/docs/docs/holds',
    '/docs/pictures/',
    '/docs/constructor',
    '/docs//holds',
    '/docs/package.json',
    '/docs/server/api/docs.css',
  ]) {
    const { status, text } = await get(url);
    expect(status, url).toBe(404);
    expect(text, url).toContain('<h1>No such page</h1>');
    expect(text, url).not.toContain('"dependencies"');
  }
});

const made: string[] = [];
afterAll(() => {
  for (const dir of made) rmSync(dir, { recursive: true, force: true });
});

function docsOf(files: Record<string, string>): Docs {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-docs-'));
  made.push(dir);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
    writeFileSync(path.join(dir, name), text);
  }
  return loadDocs(dir);
}
const bodyOf = (docs: Docs, url: string) => /<main[^>]*>\n([\s\S]*)<\/main>/.exec(String(docs.get(url)?.body))![1]!;

test('raw HTML is shown as text, and a link never leads to a script', () => {
  const html = bodyOf(
    docsOf({
      'docs/a.md':
        '# A <script>alert(1)</script>\n\n<img src=x onerror=alert(1)>\n\n[b](javascript:alert(1)) [c](data:text/html,x)\n' +
        '[d](//elsewhere.example) [e](<https://x.example/"onclick="alert(1)>) ![f](https://x.example/t.png)\n\n`<i>` <!-- note -->\n',
    }),
    '/docs/a',
  );
  expect(html).not.toMatch(/<(script|img|i)\b|javascript:|data:|href="\/\/|onclick="|note/);
  expect(html).toContain('&lt;img src=x onerror=alert(1)&gt;');
  expect(html).toContain('<code>&lt;i&gt;</code>');
  expect(html).toContain('href="https://x.example/&quot;onclick=&quot;alert(1)"');
});

test('links between files become links between pages; what is not served is text', () => {
  const found = docsOf({
    'README.md': '# Top\n[holds](docs/holds.md#who-votes) [license](LICENSE) ![p](docs/pictures/p.svg)',
    LICENSE: 'x',
    'docs/README.md': '# Docs\n**Guides**\n\n- [Holds](holds.md): x, [Top](../README.md)\n- [Why](why/README.md)\n',
    'docs/holds.md': '# Holds\n## Who votes?\n## Who votes?\n## `a_b` & <c>\n[top](../README.md) [why](why)',
    'docs/why/README.md': '# Why\n[one](1.md)',
    'docs/why/1.md': '# One\n[up](README.md) [api](../../server/api/openapi.json)',
    'docs/pictures/p.svg': '<svg xmlns="http://www.w3.org/2000/svg"/>',
    'server/api/openapi.json': '{}',
  });
  expect([...found.paths].sort()).toEqual([
    '/docs',
    '/docs/README',
    '/docs/holds',
    '/docs/pictures/p.svg',
    '/docs/why',
    '/docs/why/1',
  ]);
  const top = bodyOf(found, '/docs/README');
  expect(linksOf(top)).toEqual(['/docs/holds#who-votes', '/docs/pictures/p.svg']);
  expect(top).toContain('license');
  const holds = bodyOf(found, '/docs/holds');
  expect(idsOf(holds)).toEqual(['holds', 'who-votes', 'who-votes-1', 'a_b--c']);
  expect(linksOf(holds).slice(-2)).toEqual(['/docs/README', '/docs/why']);
  expect(holds).toContain('aria-label="On this page"');
  expect(linksOf(bodyOf(found, '/docs/why/1'))).toEqual(['/docs/why', '/openapi.json']);
  // beside each page: what the index lists, and where one is
  expect(String(found.get('/docs/holds')!.body)).toMatch(
    /<strong>Guides<\/strong><ul><li><a href="\/docs\/holds" aria-current="page">Holds<\/a><\/li><li><a href="\/docs\/README">Top/,
  );
});
