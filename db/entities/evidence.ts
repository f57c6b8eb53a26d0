import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { tenantFilter, time } from './common.ts';

export const EvidencePackage = defineEntity({
  name: 'EvidencePackage',
  tableName: 'evidence_package',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    purpose: p.text(),
    chain: p.text(),
    fromAt: time(),
    toAt: time(),
    /** Set for the package of a session. */
    sessionId: p.text().nullable(),
    firstSeq: p.bigint('number'),
    lastSeq: p.bigint('number'),
    recordCount: p.integer(),
    chainIntact: p.boolean(),
    packageHash: p.text(),
    publicKeyFingerprint: p.text(),
    size: p.bigint('number'),
    createdBy: p.string(),
    createdAt: time(),
  },
  filters: tenantFilter,
});
export type EvidencePackageRow = InferEntity<typeof EvidencePackage>;
