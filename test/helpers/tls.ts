import { randomUUID } from 'node:crypto';
import { isIP } from 'node:net';
import { generate } from 'selfsigned';

export interface Identity {
  key: string;
  cert: string;
}

/** The test's own certificate authority: nothing in the system trusts it. */
export class TestCa {
  /** PEM, for those who should trust it. */
  readonly cert: string;
  readonly #key: string;

  private constructor(cert: string, key: string) {
    this.cert = cert;
    this.#key = key;
  }

  static async create(): Promise<TestCa> {
    const made = await generate([{ name: 'commonName', value: `Test authority ${randomUUID()}` }], {
      keyType: 'ec',
      algorithm: 'sha256',
      extensions: [
        { name: 'basicConstraints', cA: true, critical: true },
        { name: 'keyUsage', keyCertSign: true, critical: true },
      ],
    });
    return new TestCa(made.cert, made.private);
  }

  /** A server's certificate for these names and addresses, signed by the authority. */
  async issue(names: readonly string[], valid: { from?: Date; to?: Date } = {}): Promise<Identity> {
    const made = await generate([{ name: 'commonName', value: names[0]! }], {
      ...leaf(names),
      ...(valid.from && { notBeforeDate: valid.from }),
      ...(valid.to && { notAfterDate: valid.to }),
      ca: { key: this.#key, cert: this.cert },
    });
    return { key: made.private, cert: made.cert };
  }

  /** A certificate that expired yesterday. */
  expired(names: readonly string[]): Promise<Identity> {
    const day = 24 * 3600 * 1000;
    return this.issue(names, { from: new Date(Date.now() - 30 * day), to: new Date(Date.now() - day) });
  }

  /** A certificate for these names that no authority signed. */
  static async selfSigned(names: readonly string[]): Promise<Identity> {
    const made = await generate([{ name: 'commonName', value: names[0]! }], leaf(names));
    return { key: made.private, cert: made.cert };
  }
}

function leaf(names: readonly string[]) {
  return {
    keyType: 'ec' as const,
    algorithm: 'sha256',
    extensions: [
      { name: 'basicConstraints' as const, cA: false },
      { name: 'keyUsage' as const, digitalSignature: true },
      { name: 'extKeyUsage' as const, serverAuth: true },
      {
        name: 'subjectAltName' as const,
        altNames: names.map((name) =>
          isIP(name) ? { type: 7 as const, ip: name } : { type: 2 as const, value: name },
        ),
      },
    ],
  };
}
