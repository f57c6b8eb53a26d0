import path from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** The files that take longest. A long one that starts last keeps one worker busy while the others have nothing to do. */
const LONGEST = [
  'deploy/drill',
  'actors/processes',
  'readme',
  'cli/tenant-move',
  'e2e/hostile-text',
  'api/audit',
  'chain/verification',
  'e2e/administration',
  'e2e/policies',
  'e2e/shell',
  'e2e/finding',
  'e2e/people',
  'e2e/triage',
  'decisions/plans',
  'deploy/replication',
  'demo',
  'deploy/citus',
  'letters/person-mail',
  'e2e/decision-tests',
  'e2e/live',
  'simulation/simulations',
  'proxy/tool-registry',
  'cli/backup',
  'e2e/holds',
  'subscriptions/subscriptions',
  'api/bad-input',
  'e2e/lists-agents',
  'chain/loss',
  'api/access',
  'cli/running',
  'e2e/tools',
  'proxy/conformance',
  'api/calls',
  'stops/stops',
  'e2e/evidence',
  'proxy/mcp-eras',
  'actors/alone',
  'cli/alone',
  'chain/block-writer',
  'proxy/mcp',
  'e2e/subscriptions',
  'sdk/package',
  'subscriptions/misbehavior',
  'proxy/mcp-attacks',
  'dev',
  'auth/sso-hostile',
  'api/export',
];

/** Starts with the longest files, even if no earlier run is known; the others are ordered by whether they failed or are large. */
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
