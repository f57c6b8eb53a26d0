import { afterAll } from 'vitest';

const cleanups: (() => unknown)[] = [];

/** Runs a cleanup when the current test file ends, in reverse order of registration. */
export function atEnd(clean: () => unknown): void {
  cleanups.push(clean);
}

/** Call once per test file: a hook that is registered from within a running test is never called. */
export function registerCleanups(): void {
  afterAll(async () => {
    for (const clean of cleanups.splice(0).reverse()) await clean();
  });
}
