/// <reference types="vite/types/importMeta.d.ts" />
import { templatesOf } from './policy-templates.ts';

const files = import.meta.glob<string>(['../templates/*/policy.cedar', '../templates/*/tests.yaml'], {
  query: '?raw',
  import: 'default',
  eager: true,
});

export const TEMPLATES = templatesOf((path) => files[`../templates/${path}`] ?? '');
