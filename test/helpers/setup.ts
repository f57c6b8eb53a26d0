import fc from 'fast-check';
import { setPatience } from '../../server/lib/patience.ts';
import { SIEGE } from '../siege/rounds.ts';
import { registerCleanups } from './cleanups.ts';
import { PATIENCE } from './patience.ts';

// one seed for all property tests, so that a test run can be repeated and the counts that a test makes over its cases do not
// vary; `npm run siege` uses different cases each time
if (!SIEGE) fc.configureGlobal({ seed: 1 });

// again for each file: one that is about the limits may have changed it
setPatience(PATIENCE);

registerCleanups();
