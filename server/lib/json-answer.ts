/** JSON as a response body. It ends with a newline, as text does: in a terminal the prompt then starts on its own line. */
export const jsonAnswer = (value: unknown): string => `${JSON.stringify(value)}\n`;
