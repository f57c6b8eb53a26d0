import { mask } from '../../client/src/index.ts';
import { isRecord } from './call.ts';
import { WITHHELD } from './words.ts';

/**
 * A tool's response with masks applied, or a notice that it is withheld if it cannot be masked: masks select members of JSON, so
 * a bare text, number or file shows nothing. Text that is JSON is masked and stays text. Each content block in a response of MCP
 * tools or of the frameworks is masked like a response of its own.
 */
export function masked(value: unknown, masks: readonly string[]): unknown {
  if (masks.length === 0) return value;
  const text = (said: string): string => (parse(said) === undefined ? WITHHELD : mask(said, masks));
  const block = (part: unknown): unknown => {
    if (isRecord(part) && part.type === 'text' && typeof part.text === 'string')
      return { type: 'text', text: text(part.text) };
    return { type: 'text', text: WITHHELD };
  };
  const whole = (said: unknown): unknown => {
    if (said === undefined || said === null || typeof said === 'boolean') return said;
    if (typeof said === 'string') return text(said);
    if (typeof said !== 'object' || ArrayBuffer.isView(said) || said instanceof ArrayBuffer) return WITHHELD;
    const copy = parse(stringify(said));
    if (copy === undefined) return WITHHELD;
    if (isBlocks(copy)) return copy.map(block);
    if (isRecord(copy) && isBlock(copy)) return block(copy);
    const shown = mask(copy, masks);
    if (!isRecord(shown) || !isBlocks(shown.content)) return shown;
    // an MCP response: its parts are masked as if each were the whole
    const { content, structuredContent, isError } = shown;
    return {
      content: content.map(block),
      ...(structuredContent !== undefined && { structuredContent: mask(structuredContent, masks) }),
      ...(isError !== undefined && { isError }),
    };
  };
  try {
    return whole(value);
  } catch {
    // a mask that is not understood
    return WITHHELD;
  }
}

function isBlocks(value: unknown): value is unknown[] {
  return (
    Array.isArray(value) && value.length > 0 && value.every((part) => isRecord(part) && typeof part.type === 'string')
  );
}

/** A content part that stands alone: text that is one, or media that no mask can look into. */
function isBlock({ type, text }: Record<string, unknown>): boolean {
  return typeof type === 'string' && (MEDIA.test(type) || (type === 'text' && typeof text === 'string'));
}

const MEDIA = /^(?:input_|output_)?(?:image|audio|video|file|media|resource)/;

/** An object or array; undefined for anything else. */
function parse(text: string | undefined): object | undefined {
  try {
    const value: unknown = JSON.parse(text ?? '');
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

function stringify(value: object): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    return undefined;
  }
}
