import { registerCleanups } from './cleanups.ts';

registerCleanups();
