import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { loadDocs } from '../../server/api/docs.ts';

const root = path.resolve(import.meta.dirname, '../..');

test('every page and heading of the documentation that the dashboard links to exists', () => {
  const docs = loadDocs(root);
  const broken: string[] = [];
  let links = 0;
  for (const file of globSync('web/{ui,parts,pages}/**/*.tsx', { cwd: root })) {
    const source = readFileSync(path.join(root, file), 'utf8');
    const lists = [...source.matchAll(/docs=\{\[([\s\S]*?)\]\}/g)].map(([, list]) => `${list}]`);
    const inLists = lists.flatMap((list) => [...list.matchAll(/\['([^']+)', /g)].map(([, link]) => link!));
    const single = [...source.matchAll(/<DocsLink path="([^"]+)"/g)].map(([, link]) => link!);
    for (const link of [...inLists, ...single]) {
      links++;
      const [page, anchor] = link.split('#');
      const html = docs.get(`/docs/${page}`)?.body;
      if (!html || (anchor && !String(html).includes(` id="${anchor}"`))) broken.push(`${file}: ${link}`);
    }
  }
  expect(broken).toEqual([]);
  expect(links).toBeGreaterThan(8);
});
