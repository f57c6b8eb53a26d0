import react from '@vitejs/plugin-react';
import type { UserConfig } from 'vite';

/** A placeholder in the built page; the server replaces it with a new nonce in each response: see server/api/static.ts. */
export const NONCE_PLACEHOLDER = 'NONCE-OF-THIS-ANSWER';

export default {
  root: import.meta.dirname,
  plugins: [react()],
  html: { cspNonce: NONCE_PLACEHOLDER },
  build: {
    target: 'es2023',
    // browsers that support light-dark(): what it is compiled to for others does not follow the chosen scheme
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    manifest: true,
    // nothing is inlined: the content security policy does not allow data: URLs
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    reportCompressedSize: false,
    // what every page needs is one file: it compresses better than the many that pages happen to share
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: 'frame', tags: ['$initial'] }] } } },
  },
} satisfies UserConfig;
