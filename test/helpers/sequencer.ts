import path from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** The files that take longest. A long one that begins last keeps one worker busy while the others have nothing to do. */
const LONGEST = [
  'deploy/drill',
  'api/audit',
  'actors/processes',
  'chain/verification',
  'e2e/policies',
  'cli/tenant-move',
  'e2e/hostile-text',
  'e2e/administration',
  'readme',
  'e2e/decision-tests',
  'demo',
  'e2e/live',
  'e2e/shell',
  'e2e/people',
  'e2e/holds',
  'e2e/finding',
  'deploy/citus',
  'proxy/mcp-attacks',
  'e2e/triage',
  'proxy/conformance',
  'proxy/package',
  'e2e/evidence',
  'actors/alone',
  'cli/alone',
  'cli/running',
  'cli/backup',
  'dev',
  'auth/sso-hostile',
  'proxy/mcp',
  'api/bad-input',
  'api/export',
];

/** Begins with the longest files, also where no earlier run is known; among the others, with what failed or is large. */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const name = path.relative(path.join(import.meta.dirname, '..'), moduleId).replace(/(?:\.slow)?\.test\.ts$/, '');
      const index = LONGEST.indexOf(name);
      return index < 0 ? LONGEST.length : index;
    };
    return (await super.sort(files)).sort((a, b) => place(a) - place(b));
  }
}
