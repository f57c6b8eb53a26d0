import { existsSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/**
 * Writes the golden files of every area again (`npm run vectors`), or with --check says which ones the code would write
 * differently. A difference means that a format changed: old files must stay readable, so it needs a new version.
 */
const here = import.meta.dirname;
const check = process.argv.includes('--check');
const differing: string[] = [];

for (const generator of globSync('*/generate.ts', { cwd: here }).sort()) {
  const area = path.dirname(generator);
  const { generate } = (await import(`./${generator}`)) as {
    generate: () => Promise<Record<string, string | Uint8Array>>;
  };
  for (const [name, content] of Object.entries(await generate())) {
    const file = path.join(here, area, name);
    const same = existsSync(file) && readFileSync(file).equals(Buffer.from(content));
    if (same) continue;
    if (check) differing.push(path.join(area, name));
    else {
      mkdirSync(path.dirname(file), { recursive: true });
      writeFileSync(file, content);
      console.log(`wrote ${path.join('test/vectors', area, name)}`);
    }
  }
}
if (differing.length > 0) {
  console.error(`These golden files would come out differently:\n  ${differing.join('\n  ')}`);
  process.exitCode = 1;
}
