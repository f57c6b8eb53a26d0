import type { ToolDefinition } from '../../server/domain/tools.ts';
import { visible } from '../../server/policy/evaluation/approver-view.ts';
import './hostile.css';

/**
 * A text that a tool server wrote: what cannot be seen, or turns the direction of writing, is a chip with its code, and nothing
 * of it is markup. Its direction does not reach what stands around it.
 */
export function Hostile({ text }: { text: string }) {
  const parts = visible(text).split(/(⟦U\+[0-9A-F]{4,6}⟧|[␀-␟␡])/);
  return (
    <bdi className="hostile">
      {parts.map((part, n) =>
        n % 2 === 1 ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text have no other name
          <span key={n} className="chip" title="A character that would otherwise be invisible">
            {part.replace(/[⟦⟧]/g, '')}
          </span>
        ) : (
          part
        ),
      )}
    </bdi>
  );
}

/** A definition as lines of plain text, for comparing: nothing in it is invisible. */
export function definitionText(definition: ToolDefinition | undefined): string {
  if (!definition) return '';
  const { name, title, description, inputSchema, outputSchema, annotations } = definition;
  const lines = (text: string) => text.split('\n').map(visible).join('\n');
  const json = (value: unknown) => lines(JSON.stringify(value, undefined, 2));
  return [
    `name: ${visible(name)}`,
    ...(title === undefined ? [] : [`title: ${visible(title)}`]),
    ...(description === undefined ? [] : ['description:', lines(description)]),
    `arguments: ${json(inputSchema)}`,
    ...(outputSchema ? [`results: ${json(outputSchema)}`] : []),
    ...(annotations ? [`annotations: ${json(annotations)}`] : []),
  ].join('\n');
}
