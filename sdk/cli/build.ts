import path from 'node:path';
import { pack } from '../pack.ts';

const here = import.meta.dirname;
await pack(here, {
  svc: path.join(here, 'src/svc.ts'),
  'author-worker': path.resolve(here, '../../server/policy/authoring/author-worker.ts'),
});
