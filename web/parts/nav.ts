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

export interface NavEntry {
  to: string;
  label: string;
  icon: typeof IconFileText;
  /** The lowest role that sees this entry. */
  least: Role;
  group: 'Decide' | 'Prove' | 'Connect' | 'Manage' | 'Help';
  /** After g it leads there; none that does something by itself on a page. */
  key?: string;
  /** The counter shown next to it. */
  count?: 'holds' | 'reviews';
}

/** The entries of the navigation, in order; routes.tsx defines the pages. */
export const NAV: readonly NavEntry[] = [
  { to: '/', label: 'Overview', icon: IconLayoutDashboard, least: 'viewer', group: 'Decide', key: 'o' },
  {
    to: '/approvals',
    label: 'Approvals',
    icon: IconClockPause,
    least: 'viewer',
    group: 'Decide',
    key: 'i',
    count: 'holds',
  },
  { to: '/decisions', label: 'Decisions', icon: IconListDetails, least: 'viewer', group: 'Decide', key: 'd' },
  { to: '/policies', label: 'Policies', icon: IconFileText, least: 'viewer', group: 'Decide', key: 'p' },
  { to: '/stops', label: 'Stops', icon: IconHandStop, least: 'viewer', group: 'Decide', key: 's' },
  { to: '/lists', label: 'Lists', icon: IconChecklist, least: 'viewer', group: 'Decide', key: 'l' },
  {
    to: '/review',
    label: 'Review',
    icon: IconGitPullRequest,
    least: 'viewer',
    group: 'Decide',
    key: 'v',
    count: 'reviews',
  },
  { to: '/forensics', label: 'Forensics', icon: IconShieldCheck, least: 'viewer', group: 'Prove', key: 'f' },
  { to: '/audit', label: 'Audit', icon: IconHistory, least: 'viewer', group: 'Prove', key: 'u' },
  { to: '/agents', label: 'Agents', icon: IconRobot, least: 'viewer', group: 'Connect', key: 'e' },
  { to: '/tools', label: 'Tools', icon: IconTools, least: 'viewer', group: 'Connect', key: 't' },
  { to: '/proxies', label: 'Proxies', icon: IconServerBolt, least: 'viewer', group: 'Connect', key: 'x' },
  { to: '/subscriptions', label: 'Subscriptions', icon: IconWebhook, least: 'admin', group: 'Connect' },
  { to: '/keys', label: 'Keys', icon: IconKey, least: 'admin', group: 'Connect' },
  { to: '/team', label: 'Team', icon: IconUsers, least: 'admin', group: 'Manage' },
  { to: '/sign-on', label: 'Sign-on', icon: IconLogin2, least: 'admin', group: 'Manage' },
  { to: '/settings', label: 'Settings', icon: IconSettings, least: 'viewer', group: 'Manage' },
  { to: '/machines', label: 'State machines', icon: IconSitemap, least: 'admin', group: 'Help' },
];
