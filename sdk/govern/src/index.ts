export type { Call } from './call.ts';
export {
  type Description,
  type GovernOptions,
  Governor,
  type Hold,
  type Permit,
  type Ran,
  type Refused,
  type Settled,
  type Verdict,
} from './governor.ts';
export { refusal, waiting } from './words.ts';
