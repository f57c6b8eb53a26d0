import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { build } from 'vite';

/** Builds the client into dist/: plain JavaScript for Node.js 20, workers and browsers, with its types. */
const here = import.meta.dirname;
const root = path.resolve(here, '../..');
const dist = path.join(here, 'dist');

await build({
  configFile: false,
  root,
  logLevel: 'warn',
  build: {
    target: 'es2022',
    outDir: dist,
    emptyOutDir: true,
    minify: false,
    lib: { entry: path.join(here, 'src/index.ts'), formats: ['es'], fileName: 'index' },
    rolldownOptions: { external: ['openapi-fetch'] },
  },
});

// the types of the package's own files; none of them refers to a file of the server
const types = mkdtempSync(path.join(tmpdir(), 'client-types-'));
try {
  const tsc = path.join(here, 'node_modules/typescript/bin/tsc');
  execFileSync(process.execPath, [tsc, '-p', here, '--outDir', types], { stdio: 'inherit' });
  mkdirSync(dist, { recursive: true });
  for (const file of globSync('*.d.ts', { cwd: path.join(types, 'sdk/client/src') })) {
    const text = readFileSync(path.join(types, 'sdk/client/src', file), 'utf8');
    writeFileSync(
      path.join(dist, file),
      text.replace(/(from "\.\/\w+)\.ts"/g, '$1.js"').replace(/(from '\.\/\w+)\.ts'/g, "$1.js'"),
    );
  }
} finally {
  rmSync(types, { recursive: true, force: true });
}
cpSync(path.join(root, 'LICENSE'), path.join(here, 'LICENSE'));
