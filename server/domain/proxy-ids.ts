/** The `proxy_id` of decisions that the control plane made itself. */
export const CONTROL_PLANE = 'control-plane';

/** Whether people would take this for the control plane's id. No proxy may use it. */
export function isReservedProxyId(id: string): boolean {
  // nothing that follows a printable first character can remove it or turn it into another letter
  if (/^[!-~]/.test(id) && !/^c/i.test(id)) return false;
  const read = id.normalize('NFKC').replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]/gu, '');
  return (
    read
      .trim()
      .toLowerCase()
      .replace(/[\s_\p{Pd}]+/gu, '-') === CONTROL_PLANE
  );
}
