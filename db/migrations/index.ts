import { Spine } from './0001-spine.ts';

/** Every migration in order. A name never changes once it was released. */
export const migrations = [{ name: '0001-spine', class: Spine }];
