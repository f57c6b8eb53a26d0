import { cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { build } from 'vite';

const root = path.resolve(import.meta.dirname, '..');
const read = (file: string) => JSON.parse(readFileSync(file, 'utf8'));

/**
 * Builds a program of the server into the package in `here`: plain JavaScript for Node.js 20.19 and later in dist/, with the
 * libraries it uses bundled, except those in its package.json. NOTICE.txt holds the licenses of what is bundled.
 */
export async function pack(here: string, input: Record<string, string>): Promise<void> {
  const own = read(path.join(here, 'package.json'));
  const external: Record<string, string> = { ...own.dependencies, ...own.optionalDependencies };

  for (const [name, version] of Object.entries(external)) {
    const installed = read(path.join(root, 'node_modules', name, 'package.json')).version;
    if (installed !== version)
      throw new Error(`${own.name}/package.json: ${name} is ${version}, the project has ${installed}`);
  }

  const result = await build({
    configFile: false,
    root,
    logLevel: 'warn',
    build: {
      ssr: true,
      target: 'node20.19',
      outDir: path.join(here, 'dist'),
      emptyOutDir: true,
      minify: true,
      rolldownOptions: {
        input,
        output: { format: 'es', entryFileNames: '[name].js', chunkFileNames: '[name].js' },
      },
    },
    ssr: { noExternal: true, external: Object.keys(external) },
  });

  const modules = (Array.isArray(result) ? result : [result])
    .flatMap((one) => ('output' in one ? one.output : []))
    .flatMap((part) => (part.type === 'chunk' ? part.moduleIds : []));
  const packages = new Set(
    modules.flatMap((id) => /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replaceAll('\\', '/'))?.[1] ?? []),
  );
  const notices = [...packages].sort().map((dir) => {
    const { name, version, license } = read(path.join(dir, 'package.json'));
    const file = readdirSync(dir).find((entry) => /^licen[cs]e/i.test(entry));
    if (!license && !file) throw new Error(`${name} has no license`);
    return `${name} ${version} (${license})\n\n${file ? readFileSync(path.join(dir, file), 'utf8').trim() : ''}`;
  });
  writeFileSync(
    path.join(here, 'NOTICE.txt'),
    `${own.name} contains code of these packages.\n\n${notices.join(`\n\n${'-'.repeat(80)}\n\n`)}\n`,
  );
  for (const file of ['LICENSE'])
    if (!existsSync(path.join(here, file))) cpSync(path.join(root, file), path.join(here, file));
}
