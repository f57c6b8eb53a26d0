/** What people can be mailed about: an action that is held, a version of a policy that waits for a review. */
export const MAIL_KINDS = ['hold', 'review'] as const;
export type MailKind = (typeof MAIL_KINDS)[number];

/** How often: at once, or what has come since in one letter at every full hour, or at one hour of the day. */
export const MAIL_PACES = ['each', 'hourly', 'daily'] as const;
export type MailPace = (typeof MAIL_PACES)[number];
