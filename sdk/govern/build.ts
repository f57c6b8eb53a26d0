import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { build } from 'vite';

/**
 * Builds the adapters into dist/: plain JavaScript with its types, with the client bundled in. The frameworks are not bundled,
 * and those that are not used need not be installed.
 */
const here = import.meta.dirname;
const root = path.resolve(here, '../..');
const dist = path.join(here, 'dist');
const { exports, dependencies, peerDependencies } = JSON.parse(readFileSync(path.join(here, 'package.json'), 'utf8'));
const names = Object.values<{ default: string }>(exports).map(({ default: file }) => path.basename(file, '.js'));

await build({
  configFile: false,
  root,
  logLevel: 'warn',
  build: {
    target: 'es2022',
    outDir: dist,
    emptyOutDir: true,
    minify: false,
    lib: { entry: Object.fromEntries(names.map((name) => [name, path.join(here, `src/${name}.ts`)])), formats: ['es'] },
    rolldownOptions: {
      external: Object.keys({ ...dependencies, ...peerDependencies }),
      output: { chunkFileNames: '[name].js' },
    },
  },
});

// the types of the package's own files; none of them refers to another package
const types = mkdtempSync(path.join(tmpdir(), 'govern-types-'));
try {
  const tsc = path.join(root, 'node_modules/.bin/tsc');
  execFileSync(tsc, ['-p', here, '--outDir', types], { stdio: 'inherit' });
  const made = path.join(types, 'sdk/govern/src');
  for (const file of globSync('*.d.ts', { cwd: made })) {
    const text = readFileSync(path.join(made, file), 'utf8');
    writeFileSync(path.join(dist, file), text.replace(/(from '\.\/[\w-]+)\.ts'/g, "$1.js'"));
  }
} finally {
  rmSync(types, { recursive: true, force: true });
}
cpSync(path.join(root, 'LICENSE'), path.join(here, 'LICENSE'));
