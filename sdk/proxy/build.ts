import path from 'node:path';
import { pack } from '../pack.ts';

const here = import.meta.dirname;
await pack(here, {
  'svc-proxy': path.join(here, 'src/svc-proxy.ts'),
  'schema-worker': path.resolve(here, '../../server/proxy/schema-worker.ts'),
});
