import { type ReactNode, useLayoutEffect, useRef, useState } from 'react';
import type { ToolDefinition } from '../../server/domain/tools.ts';
import { namePieces, pieces, visible } from '../../server/lib/visible.ts';
import { codeIn } from '../lib/words.ts';
import './hostile.css';

/**
 * The pieces of a text: invisible characters, and those that change the writing direction, become chips with their code. In a
 * name, letters that can be mistaken for others are marked as well.
 */
function Pieces({ text, name = false }: { text: string; name?: boolean | undefined }) {
  const all = name ? namePieces(text) : pieces(text).map(({ text, code }) => ({ text, kind: code ? 'code' : 'text' }));
  return all.map(({ text, kind }, n) =>
    kind === 'text' ? (
      text
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text have no other name
      <span key={n} {...(kind === 'code' ? CHIP : LOOKALIKE)}>
        {text}
      </span>
    ),
  );
}

const CHIP = { className: 'chip', title: 'A character that would otherwise be invisible' };
const LOOKALIKE = { className: 'lookalike', title: 'Can be taken for another letter' };

/**
 * Text written by an agent, a tool or a tenant: nothing in it is invisible and nothing of it is markup. Its direction does not
 * affect the text around it. It takes as much room as it needs; where that could move something else, use a `Line` or `Clamped`.
 * `name`: people recognize something by it, so no other name may look the same.
 */
export function Hostile({ text, name }: { text: string; name?: boolean | undefined }) {
  return (
    <bdi className="hostile">
      <Pieces text={text} name={name} />
    </bdi>
  );
}

/** A sentence of ours that contains code and untrusted text. */
export function Sentence({ text }: { text: string }) {
  return (
    <bdi className="hostile">
      {codeIn(text).map(
        ({ text, code }, n) =>
          // biome-ignore-start lint/suspicious/noArrayIndexKey: the parts of a sentence have no other name
          code ? (
            <code key={n} className="mono">
              <Pieces text={text} />
            </code>
          ) : (
            <Pieces key={n} text={text} />
          ),
        // biome-ignore-end lint/suspicious/noArrayIndexKey: as above
      )}
    </bdi>
  );
}

/** Exactly one line, whatever it contains: what does not fit is cut off, and nothing else moves. */
export function Line({ children, className = '' }: { children: ReactNode; className?: string }) {
  return <div className={`one-line ${className}`}>{children}</div>;
}

/** A name that an agent or a tool chose, within our own text: it looks different from that, and has little room. */
export function Name({ text }: { text: string }) {
  return (
    <bdi className="hostile name" title={visible(text)}>
      <Pieces text={text} name />
    </bdi>
  );
}

/**
 * Untrusted text in a fixed number of lines, whatever its length, until the user asks for all of it. Space for the button is
 * always reserved: the layout does not depend on the text.
 */
export function Clamped({
  text,
  lines = 1,
  what,
  name,
}: {
  text: string;
  lines?: number;
  what: string;
  name?: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [cut, setCut] = useState(false);
  const [open, setOpen] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another text has another length
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || open) return;
    const look = () =>
      setCut(element.scrollHeight > element.clientHeight + 1 || element.scrollWidth > element.clientWidth + 1);
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, [text, open]);
  return (
    <div className="clamped">
      <div
        ref={box}
        className={open ? undefined : lines === 1 ? 'one-line' : 'some-lines'}
        style={open || lines === 1 ? undefined : { height: `${lines}lh`, WebkitLineClamp: lines }}
      >
        <Hostile text={text} name={name} />
      </div>
      <button
        type="button"
        className="show-all"
        data-needed={cut || open || undefined}
        aria-expanded={open}
        aria-label={`${open ? 'Show less' : 'Show all'} of ${visible(what)}`}
        onClick={() => setOpen(!open)}
      >
        {open ? 'Less' : 'Show all'}
      </button>
    </div>
  );
}

/** Lines of JSON or plain text: the direction of each quoted text does not affect the rest. */
export function HostileLines({ text }: { text: string }) {
  return text.split('\n').map((line, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
    <span key={n}>
      {n > 0 ? '\n' : null}
      {line.split(/("(?:[^"\\]|\\.)*"|\t)/).map(
        (part, m) =>
          // biome-ignore-start lint/suspicious/noArrayIndexKey: nor do their parts
          part === '\t' ? part : m % 2 === 1 ? <Hostile key={m} text={part} /> : <Pieces key={m} text={part} />,
        // biome-ignore-end lint/suspicious/noArrayIndexKey: as above
      )}
    </span>
  ));
}

/** A definition as lines of plain text, for comparison: nothing in it is invisible. */
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

/** What a person wrote, line by line. */
export function Said({ text }: { text: string }) {
  return text.split(/\r\n?|\n/).map((line, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
    <span key={n}>
      {n > 0 ? '\n' : null}
      <Hostile text={line} />
    </span>
  ));
}
