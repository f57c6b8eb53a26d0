/** The mark of the program: a shield that holds. */
export function Mark({ size = 22 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="light-dark(#0f5c63, #1a6f76)" />
      <path
        d="M16 6.5 24 9.600v6.200c0 5-3.300 8.300-8 9.900-4.700-1.600-8-4.900-8-9.900V9.600Z"
        fill="none"
        stroke="#fff"
        strokeWidth="2.200"
        strokeLinejoin="round"
      />
      <path d="M12.500 13v6M19.500 13v6" stroke="#fff" strokeWidth="2.600" strokeLinecap="round" />
    </svg>
  );
}
