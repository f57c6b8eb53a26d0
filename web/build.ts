import { createHash } from 'node:crypto';
import { existsSync, globSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';

const here = import.meta.dirname;
const root = path.dirname(here);
/** Where the server looks for the built dashboard. */
const dist = path.join(here, 'dist');
const stampFile = path.join(dist, '.stamp.json');

/**
 * Builds the dashboard into web/dist, unless what is there was built from exactly the same sources. Several processes may do so
 * at once: each builds separately and moves its whole result into place.
 */
export async function buildDashboard(log: (line: string) => void = () => undefined): Promise<void> {
  const last = readStamp();
  if (last && last.stamp === stampOf(last.modules)) return;
  log('building the dashboard (only after a change of its sources)');
  const [{ build }, { default: config }] = await Promise.all([import('vite'), import('./vite.config.ts')]);
  const outDir = mkdtempSync(path.join(here, 'dist-'));
  const mode = process.env.NODE_ENV;
  // a test runner's mode would build React's development version
  process.env.NODE_ENV = 'production';
  try {
    const built = await build({ ...config, configFile: false, logLevel: 'warn', build: { ...config.build, outDir } });
    const modules = (Array.isArray(built) ? built : [built])
      .flatMap((result) => ('output' in result ? result.output : []))
      .flatMap((part) => (part.type === 'chunk' ? part.moduleIds : []))
      .map((id) => path.relative(root, id.split('?')[0]!))
      .filter(
        (file) => !file.startsWith('..') && !file.startsWith('node_modules/') && existsSync(path.join(root, file)),
      );
    await compress(outDir);
    const stamp: Stamp = { modules: [...new Set(modules)].sort(), stamp: stampOf(modules) };
    writeFileSync(path.join(outDir, '.stamp.json'), JSON.stringify(stamp));
    replace(outDir);
  } finally {
    if (mode === undefined) delete process.env.NODE_ENV;
    else process.env.NODE_ENV = mode;
    rmSync(outDir, { recursive: true, force: true });
  }
}

/** What the dashboard was built from: everything in web/, and what it imports from elsewhere in the project. */
interface Stamp {
  modules: string[];
  stamp: string;
}

function readStamp(): Stamp | undefined {
  try {
    return JSON.parse(readFileSync(stampFile, 'utf8')) as Stamp;
  } catch {
    return undefined;
  }
}

function stampOf(modules: readonly string[]): string {
  const own = globSync('web/**/*', { cwd: root, exclude: (name) => /(^|\/)dist(-\w+)?$/.test(name) });
  const hash = createHash('sha256');
  for (const file of [...new Set([...own, ...modules, 'package-lock.json'])].sort()) {
    if (!/\.\w+$/.test(file)) continue;
    const full = path.join(root, file);
    hash.update(`${file}\0${existsSync(full) ? readFileSync(full, 'utf8') : ''}\0`);
  }
  return hash.digest('hex');
}

/** A compressed copy next to each text file, so that no request pays for compression. */
async function compress(dir: string): Promise<void> {
  const files = globSync('assets/*.{js,css,svg}', { cwd: dir }).map((file) => path.join(dir, file));
  await Promise.all(
    files.map(async (file) => {
      const bytes = readFileSync(file);
      const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 9 } };
      writeFileSync(`${file}.br`, await promisify(brotliCompress)(bytes, quality));
      writeFileSync(`${file}.gz`, await promisify(gzip)(bytes, { level: 9 }));
    }),
  );
}

function replace(outDir: string): void {
  for (let tries = 0; ; tries++) {
    try {
      rmSync(dist, { recursive: true, force: true });
      renameSync(outDir, dist);
      return;
    } catch (error) {
      // another process put its result there between the two steps
      if (tries >= 5) throw error;
    }
  }
}

if (import.meta.main) await buildDashboard((line) => console.error(line));
