import { applyMasks, parseMask } from '../../../server/policy/evaluation/masks.ts';
import { signatureHeaders } from '../../../server/subscriptions/signature.ts';

/** What every client must do as the server does: masks, and the signatures of webhooks. */
export async function generate(): Promise<Record<string, string>> {
  return { 'masks.json': printed(masks()), 'webhooks.json': printed(webhooks()) };
}

const printed = (value: unknown) => `${JSON.stringify(value, null, 2)}\n`;

const ORDER = {
  id: 'o1',
  card: { number: '4111', name: 'A. Person' },
  items: [
    { sku: 'x', ssn: '1' },
    { sku: 'y', ssn: ['2', { ssn: 3 }] },
  ],
  'odd name': { é: 1, ключ: 2, '0': 3, '\u{1F600}': 4 },
  nothing: null,
  ssn: false,
};

function masks() {
  const cases: { value: unknown; masks: string[] }[] = [
    { value: ORDER, masks: [] },
    ...[
      '$',
      '$.card',
      '$.card.number',
      '$.*',
      '$..*',
      '$..ssn',
      '$.items[*].ssn',
      '$.items[1]',
      '$.items[9]',
      '$.items.ssn',
      '$.items[0].*',
      '$.card[0]',
      '$.card[*]',
      "$['odd name']",
      "$['odd name']['é']",
      "$['odd name'].é",
      "$['odd name'].ключ",
      "$['odd name'][0]",
      "$['odd name']['0']",
      "$['odd name'].\u{1F600}",
      '$.nothing.more',
      '$.nothing',
      '$.none',
      '$..items..ssn',
      '$.toString',
      '$.__proto__',
    ].map((path) => ({ value: ORDER, masks: [path] })),
    { value: ORDER, masks: ['$.card.number', '$..ssn'] },
    { value: [[1, [2]], { a: [3] }], masks: ['$[0][1]', '$[*].a'] },
    { value: [[1, [2]], { a: [3] }], masks: ['$..[0]'] },
    { value: 'text', masks: ['$.a'] },
    { value: 'text', masks: ['$'] },
    { value: 7, masks: ['$..*'] },
    { value: { ssn: { ssn: 1 } }, masks: ['$.ssn.ssn'] },
  ];
  return {
    cases: cases.flatMap(({ value, masks }) => {
      try {
        return [{ value, masks, result: applyMasks(structuredClone(value), masks.map(parseMask)) }];
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        return [];
      }
    }),
    refused: [
      '',
      'a',
      '.a',
      '$.',
      '$a',
      '$[',
      '$[]',
      '$[-1]',
      '$[?(@.a)]',
      "$['a",
      '$[1:2]',
      '$...a',
      '$.a b',
      "$['']",
      '$[1234567890]',
    ].filter((path) => {
      try {
        parseMask(path);
        return false;
      } catch {
        return true;
      }
    }),
  };
}

function webhooks() {
  const body = '{"event":"escrow.released","payload":{"escrow_id":"esc_1","name":"Zoë \u{1F600}"}}';
  const timestamp = 1_750_000_000;
  const base64 = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
  const signed = (secrets: string[], more: object = {}) =>
    signatureHeaders({ body, eventId: 'oev_1', timestamp, secrets, ...more });
  const one = signed([base64]);
  return {
    valid: [
      { name: 'a secret in base64', secrets: [base64], headers: one, body, now: timestamp },
      { name: 'a secret of plain text', secrets: ['plain'], headers: signed(['plain']), body, now: timestamp + 300 },
      {
        name: 'a secret that is not quite base64',
        secrets: ['whsec_no!'],
        headers: signed(['whsec_no!']),
        body,
        now: timestamp,
      },
      {
        name: 'a secret with other letters',
        secrets: ['pässwörd'],
        headers: signed(['pässwörd']),
        body,
        now: timestamp,
      },
      {
        name: 'a rotation at the sender',
        secrets: [base64],
        headers: signed(['new', base64]),
        body,
        now: timestamp - 300,
      },
      { name: 'a rotation at the receiver', secrets: ['new', base64], headers: one, body, now: timestamp },
    ],
    invalid: [
      { name: 'another secret', secrets: ['other'], headers: one, body, now: timestamp },
      { name: 'no secret', secrets: [''], headers: signed(['x']), body, now: timestamp },
      {
        name: 'another body',
        secrets: [base64],
        headers: one,
        body: body.replace('released', 'rejected'),
        now: timestamp,
      },
      { name: 'another event', secrets: [base64], headers: { ...one, 'webhook-id': 'oev_2' }, body, now: timestamp },
      {
        name: 'another time',
        secrets: [base64],
        headers: { ...one, 'webhook-timestamp': String(timestamp + 1) },
        body,
        now: timestamp,
      },
      { name: 'too old', secrets: [base64], headers: one, body, now: timestamp + 301 },
      { name: 'too new', secrets: [base64], headers: one, body, now: timestamp - 301 },
      {
        name: 'a time that is no number',
        secrets: [base64],
        headers: { ...one, 'webhook-timestamp': `${timestamp}.0` },
        body,
        now: timestamp,
      },
      { name: 'no time', secrets: [base64], headers: { ...one, 'webhook-timestamp': '' }, body, now: timestamp },
      { name: 'no signature', secrets: [base64], headers: { ...one, 'webhook-signature': '' }, body, now: timestamp },
      {
        name: 'a signature of another version',
        secrets: [base64],
        headers: { ...one, 'webhook-signature': one['webhook-signature']!.replace('v1,', 'v1a,') },
        body,
        now: timestamp,
      },
      {
        name: 'a signature that is no base64',
        secrets: [base64],
        headers: { ...one, 'webhook-signature': 'v1,?' },
        body,
        now: timestamp,
      },
      {
        name: 'a part of the signature',
        secrets: [base64],
        headers: { ...one, 'webhook-signature': one['webhook-signature']!.slice(0, 23) },
        body,
        now: timestamp,
      },
      {
        name: 'a body that is no JSON',
        secrets: [base64],
        headers: signed([base64], { body: 'no' }),
        body: 'no',
        now: timestamp,
      },
    ],
  };
}
