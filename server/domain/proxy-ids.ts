/** The `proxy_id` of what the control plane decided itself. */
export const CONTROL_PLANE = 'control-plane';

/** Would people take this for the id of the control plane? No proxy may go by it. */
export function isReservedProxyId(id: string): boolean {
  // nothing that comes after a printable first character takes it away or makes another letter of it
  if (/^[!-~]/.test(id) && !/^c/i.test(id)) return false;
  const read = id.normalize('NFKC').replace(/[\p{Default_Ignorable_Code_Point}\p{Cc}]/gu, '');
  return (
    read
      .trim()
      .toLowerCase()
      .replace(/[\s_\p{Pd}]+/gu, '-') === CONTROL_PLANE
  );
}
