import {
  IconChecklist,
  IconClockPause,
  IconFileText,
  IconGitPullRequest,
  IconHandStop,
  IconHistory,
  IconKey,
  IconLayoutDashboard,
  IconListDetails,
  IconLogin2,
  IconRobot,
  IconServerBolt,
  IconSettings,
  IconShieldCheck,
  IconSitemap,
  IconTools,
  IconUsers,
  IconWebhook,
} from '@tabler/icons-react';
import type { Role } from '../../server/domain/principal.ts';

interface Entry {
  to: string;
  label: string;
  icon: typeof IconFileText;
  /** The lowest role that sees it; viewer if none is named. */
  least?: Role;
  /** `g` followed by this key leads there; it must not do anything by itself on a page. */
  key?: string;
  /** The counter shown next to it. */
  count?: 'holds' | 'reviews';
}

/** The entries of the navigation by group, in order; routes.tsx defines the pages. */
const GROUPS = {
  Decide: [
    { to: '/', label: 'Overview', icon: IconLayoutDashboard, key: 'o' },
    { to: '/approvals', label: 'Approvals', icon: IconClockPause, key: 'i', count: 'holds' },
    { to: '/decisions', label: 'Decisions', icon: IconListDetails, key: 'd' },
    { to: '/policies', label: 'Policies', icon: IconFileText, key: 'p' },
    { to: '/stops', label: 'Stops', icon: IconHandStop, key: 's' },
    { to: '/lists', label: 'Lists', icon: IconChecklist, key: 'l' },
    { to: '/review', label: 'Review', icon: IconGitPullRequest, key: 'v', count: 'reviews' },
  ],
  Prove: [
    { to: '/forensics', label: 'Forensics', icon: IconShieldCheck, key: 'f' },
    { to: '/audit', label: 'Audit', icon: IconHistory, key: 'u' },
  ],
  Connect: [
    { to: '/agents', label: 'Agents', icon: IconRobot, key: 'e' },
    { to: '/tools', label: 'Tools', icon: IconTools, key: 't' },
    { to: '/proxies', label: 'Proxies', icon: IconServerBolt, key: 'x' },
    { to: '/subscriptions', label: 'Subscriptions', icon: IconWebhook, least: 'admin' },
    { to: '/keys', label: 'Keys', icon: IconKey, least: 'admin' },
  ],
  Manage: [
    { to: '/team', label: 'Team', icon: IconUsers, least: 'admin' },
    { to: '/sign-on', label: 'Sign-on', icon: IconLogin2, least: 'admin' },
    { to: '/settings', label: 'Settings', icon: IconSettings },
  ],
  Help: [{ to: '/machines', label: 'State machines', icon: IconSitemap, least: 'admin' }],
} as const satisfies Record<string, readonly Entry[]>;

interface NavEntry extends Entry {
  least: Role;
  group: keyof typeof GROUPS;
}

export const NAV: readonly NavEntry[] = Object.entries(GROUPS).flatMap(([group, entries]) =>
  entries.map((entry) => ({ least: 'viewer' as const, ...entry, group: group as keyof typeof GROUPS })),
);
