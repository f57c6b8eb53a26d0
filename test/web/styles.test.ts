import { existsSync, globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';

const web = path.resolve(import.meta.dirname, '../../web');
const mantine = path.resolve(import.meta.dirname, '../../node_modules/@mantine/core/styles');

test('every component has its styles: those of the shell, or those that its page imports', () => {
  const shell = readFileSync(path.join(web, 'ui/styles.ts'), 'utf8');
  const bare: string[] = [];
  for (const file of globSync('{ui,parts,pages}/**/*.tsx', { cwd: web })) {
    const source = readFileSync(path.join(web, file), 'utf8');
    const [, names = ''] = /import \{([^}]*)\} from '@mantine\/core'/.exec(source) ?? [];
    for (const name of names.split(',').map((one) => one.trim())) {
      const styles = `@mantine/core/styles/${name}.css`;
      if (!existsSync(path.join(mantine, `${name}.css`)) || shell.includes(styles) || source.includes(styles)) continue;
      bare.push(`${file}: ${name}`);
    }
  }
  expect(bare).toEqual([]);
});
