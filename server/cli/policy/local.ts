import { comparable } from '../../domain/lists.ts';
import type { Diagnostic } from '../../domain/policy.ts';
import { EMPTY_REGISTRY } from '../../domain/tools.ts';
import { AuthorLanguage, type Surroundings } from '../../policy/authoring/author.ts';
import type { SuiteRun, TestResult } from '../../policy/authoring/run-suite.ts';
import { actionEntities, schemaFor } from '../../policy/language/schema.ts';
import type { FolderPolicy, FolderSettings } from './folder.ts';

/** What the compiler and the tests report for one policy. */
export interface Checked {
  id: string;
  errors: Diagnostic[];
  tests_errors: Diagnostic[];
  warnings: Diagnostic[];
  passed: number;
  failed: number;
  failures: Pick<TestResult, 'name' | 'row' | 'differences' | 'line' | 'column'>[];
  /** Null for a policy without a suite. */
  coverage: SuiteRun['coverage'] | null;
}

const LOCAL = 'local';

/** The context in which a folder's policies are evaluated without a server. */
export function surroundingsOf(settings: FolderSettings): Omit<Surroundings, 'liveTexts'> {
  const types = { read: settings.action_types.read ?? [], write: settings.action_types.write ?? [] };
  return {
    schema: schemaFor(types),
    actionEntities: actionEntities(types),
    registry: EMPTY_REGISTRY,
    lists: Object.entries(settings.lists).map(([name, values]) => ({
      ...{ name, version: 1 },
      values: [...new Set(values.map(comparable))],
    })),
  };
}

/**
 * Compiles the policies of a folder and runs their tests with the server's code, in a separate thread with the same limits. The
 * whole folder takes the place of the live policies.
 */
export async function checkFolder(
  policies: readonly FolderPolicy[],
  settings: FolderSettings,
  progress: (id: string) => void = () => {},
  language = new AuthorLanguage(),
): Promise<Checked[]> {
  const surroundings = surroundingsOf(settings);
  const names = surroundings.lists.map(({ name }) => name);
  try {
    const compiled = new Map<string, { errors: Diagnostic[]; warnings: Diagnostic[] }>();
    for (const { id, dsl_source } of policies) {
      compiled.set(id, await language.compile(LOCAL, id, dsl_source, surroundings.schema, names));
    }
    const sound = policies.filter(({ id }) => compiled.get(id)!.errors.length === 0);
    const checked: Checked[] = [];
    for (const { id, dsl_source, tests_source } of policies) {
      progress(id);
      const { errors, warnings } = compiled.get(id)!;
      const others = sound.filter((one) => one.id !== id);
      const job = {
        ...{ policyId: id, text: dsl_source, tests: tests_source ?? 'tests: []', ...surroundings },
        liveTexts: others.map((one) => ({ policyId: one.id, version: 0, text: one.dsl_source })),
      };
      const run: SuiteRun | undefined = errors.length === 0 ? await language.test(LOCAL, job) : undefined;
      const tests_errors = run?.tests_errors ?? [];
      checked.push({
        id,
        errors: run && run.errors.length > 0 ? run.errors : errors,
        tests_errors,
        warnings,
        passed: run?.passed ?? 0,
        failed: run?.failed ?? 0,
        failures: (run?.results ?? [])
          .filter(({ ok }) => !ok)
          .map(({ name, row, differences, line, column }) => ({
            ...{ name, differences, line, column },
            ...(row !== undefined && { row }),
          })),
        coverage: tests_source === null ? null : (run?.coverage ?? null),
      });
    }
    return checked;
  } finally {
    await language.close();
  }
}
