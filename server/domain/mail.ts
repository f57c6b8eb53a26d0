/** What people can get mail about: an action that is held; a version of a policy or list, or a settings change, that waits for review. */
export const MAIL_KINDS = ['hold', 'review'] as const;
export type MailKind = (typeof MAIL_KINDS)[number];

/** How often: immediately, or everything new in one mail at every full hour, or at one hour of the day. */
export const MAIL_PACES = ['each', 'hourly', 'daily'] as const;
export type MailPace = (typeof MAIL_PACES)[number];
