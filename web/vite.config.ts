import react from '@vitejs/plugin-react';
import type { UserConfig } from 'vite';

/** Stands in the built page where the server writes a new nonce into each answer: see server/api/static.ts. */
export const NONCE_PLACEHOLDER = 'NONCE-OF-THIS-ANSWER';

export default {
  root: import.meta.dirname,
  plugins: [react()],
  html: { cspNonce: NONCE_PLACEHOLDER },
  build: {
    target: 'es2023',
    // the browsers that know light-dark(): what it is compiled to for others does not follow the chosen scheme
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    manifest: true,
    // nothing is inlined: the policy for content knows no data: addresses
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    reportCompressedSize: false,
    // what every page needs is one file: it compresses better than the many that pages happen to share
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: 'frame', tags: ['$initial'] }] } } },
  },
} satisfies UserConfig;
