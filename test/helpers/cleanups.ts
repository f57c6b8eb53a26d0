import { afterAll } from 'vitest';

const cleanups: (() => unknown)[] = [];

/** Has something done when the present test file ends, the last that was asked for first. */
export function atEnd(clean: () => unknown): void {
  cleanups.push(clean);
}

/** To be called once for each test file: a hook that is registered from within a running test is never called. */
export function registerCleanups(): void {
  afterAll(async () => {
    for (const clean of cleanups.splice(0).reverse()) await clean();
  });
}
