import fc from 'fast-check';
import { SIEGE } from '../siege/rounds.ts';
import { registerCleanups } from './cleanups.ts';

// one seed for all properties, so that a run of the tests can be repeated and what a test counts over its cases is the same
// each time; `npm run siege` draws other cases each time
if (!SIEGE) fc.configureGlobal({ seed: 1 });

registerCleanups();
