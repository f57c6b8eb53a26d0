import { mergeConfig } from 'vitest/config';
import base from '../vitest.config.ts';

/** `npm run screenshots`, or of some screens only: `npm run screenshots -- -t policies`. */
const { include: _tests, ...test } = base.test!;
export default mergeConfig({ ...base, test }, { test: { include: ['test/e2e/screenshots.ts'] } });
