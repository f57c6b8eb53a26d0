/** JSON as the body of an answer. It ends with a newline, as text does: in a terminal the prompt stands on its own line. */
export const jsonAnswer = (value: unknown): string => `${JSON.stringify(value)}\n`;
