import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { bracketMatching } from '@codemirror/language';
import { type Diagnostic, forceLinting, linter, lintGutter, lintKeymap } from '@codemirror/lint';
import { EditorState, RangeSet, StateEffect, StateField, type Text } from '@codemirror/state';
import {
  EditorView,
  GutterMarker,
  gutter,
  highlightActiveLine,
  highlightActiveLineGutter,
  hoverTooltip,
  keymap,
  lineNumbers,
} from '@codemirror/view';
import { IconAlertTriangle, IconCircleCheck, IconCircleX } from '@tabler/icons-react';
import { useEffect, useImperativeHandle, useRef, useState } from 'react';
import { NAMES } from '../../lib/known-names.ts';
import { api } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Sentence } from '../hostile.tsx';
import { cedar, complete, helpFor } from './cedar.ts';
import { look } from './look.ts';
import { completeNames } from './names.ts';

export interface Problem {
  line: number;
  column: number;
  message: string;
  severity: 'error' | 'warning';
  fix?: { title: string; line: number; column: number; length: number; text: string } | undefined;
}

/** How well tests cover a line. A line may have several. */
export interface ReachMark {
  line: number;
  tone: 'ok' | 'wait' | 'bad';
  title: string;
}

/** Controls the editor from a page. */
export interface EditorHandle {
  goTo(line: number, column?: number): void;
  replace(text: string): void;
}

/**
 * An editor of policy texts: colors, completion (Ctrl-Space), help for the word under the pointer, and the server's
 * diagnostics while typing. After Escape, Tab leaves the editor; F8 moves to the next problem.
 */
export default function CodeEditor({
  initial,
  policyId,
  onChange,
  onProblems,
  onSave,
  handle,
  readOnly = false,
  suite,
  marks,
  startAt,
}: {
  initial: string;
  policyId?: string;
  onChange?: (text: string) => void;
  onProblems?: (problems: Problem[], text: string) => void;
  onSave?: () => void;
  handle?: React.Ref<EditorHandle>;
  readOnly?: boolean;
  /** The text is a test suite, and this function finds its problems; undefined if the text has changed in the meantime. */
  suite?: (text: string) => Promise<Problem[] | undefined>;
  /** Shown next to the lines, until the text changes them. */
  marks?: readonly ReachMark[];
  /** The line that is initially in view. */
  startAt?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const [problems, setProblems] = useState<Problem[]>();
  /** The text that has these problems. */
  const checked = useRef<Text>(undefined);
  const latest = useRef({ policyId, onChange, onProblems, onSave, suite });
  latest.current = { policyId, onChange, onProblems, onSave, suite };
  const checkedAs = useRef(policyId);
  const isSuite = suite !== undefined;

  // biome-ignore lint/correctness/useExhaustiveDependencies: an editor keeps its own text
  useEffect(() => {
    const check = async ({ state }: EditorView): Promise<Diagnostic[]> => {
      const text = state.doc.toString();
      const { policyId: id, suite } = latest.current;
      const found = await (suite ?? ((source) => policyProblems(source, id)))(text);
      if (!found) return [];
      // a later text, or the same one under another id, is checked by a later call
      if (view.current?.state.doc.eq(state.doc) && id === latest.current.policyId) {
        setProblems(found);
        checked.current = state.doc;
        latest.current.onProblems?.(found, text);
      }
      return found.map(({ fix, ...problem }) => ({
        ...placeOf(state.doc, problem),
        ...problem,
        ...(fix && { actions: [{ name: fix.title, apply: () => repair(fix) }] }),
      }));
    };
    const editor = new EditorView({
      parent: box.current!,
      state: EditorState.create({
        doc: initial,
        extensions: [
          look,
          lineNumbers(),
          highlightActiveLine(),
          highlightActiveLineGutter(),
          history(),
          bracketMatching(),
          closeBrackets(),
          ...(isSuite
            ? []
            : [
                cedar,
                autocompletion({ override: [complete, (at) => completeNames(at, NAMES)] }),
                hoverTooltip((at, pos) => help(at, pos)),
              ]),
          reachMarks,
          lintGutter(),
          linter(check, {
            delay: 300,
            needsRefresh: ({ transactions }) =>
              transactions.some(({ effects }) => effects.some((effect) => effect.is(renamed))),
          }),
          keymap.of([
            {
              key: 'Mod-s',
              preventDefault: true,
              run: () => {
                latest.current.onSave?.();
                return true;
              },
            },
            ...closeBracketsKeymap,
            ...completionKeymap,
            ...lintKeymap,
            ...historyKeymap,
            ...defaultKeymap,
            indentWithTab,
          ]),
          EditorView.lineWrapping,
          EditorView.domEventHandlers({ beforeinput: typeOver }),
          EditorState.readOnly.of(readOnly),
          EditorView.contentAttributes.of({
            'aria-label': `${isSuite ? 'Test suite' : 'Policy text'}. Escape, then Tab, leaves the editor.`,
            spellcheck: 'false',
          }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) latest.current.onChange?.(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = editor;
    forceLinting(editor);
    if (startAt !== undefined) goTo(startAt);
    return () => editor.destroy();
  }, [readOnly, isSuite]);

  // only the names of the rules depend on the id, which can be edited next to a text that is not saved
  useEffect(() => {
    if (policyId !== checkedAs.current) view.current?.dispatch({ effects: renamed.of(null) });
    checkedAs.current = policyId;
  }, [policyId]);

  useEffect(() => {
    const editor = view.current;
    if (editor) editor.dispatch({ effects: setMarks.of(markersOf(editor.state.doc, marks ?? [])) });
  }, [marks]);

  const goTo = (line: number, column = 1) => {
    const editor = view.current;
    if (!editor) return;
    const { from } = placeOf(editor.state.doc, { line, column });
    editor.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: 'center' }) });
    editor.focus();
  };
  const repair = ({ line, column, length, text }: NonNullable<Problem['fix']>) => {
    const editor = view.current;
    // the position refers to the text that was checked
    if (!editor || readOnly || !checked.current?.eq(editor.state.doc)) return;
    const from = editor.state.doc.line(line).from + column - 1;
    editor.dispatch({ changes: { from, to: from + length, insert: text }, selection: { anchor: from + text.length } });
    editor.focus();
  };
  useImperativeHandle(handle, () => ({
    goTo,
    replace: (text) =>
      view.current?.dispatch({ changes: { from: 0, to: view.current.state.doc.length, insert: text } }),
  }));

  const errors = problems?.filter(({ severity }) => severity === 'error').length ?? 0;
  const warnings = (problems?.length ?? 0) - errors;
  return (
    <div className="editor">
      <div ref={box} />
      {problems && problems.length > 0 ? (
        <ul className="problems" aria-label="Problems">
          {problems.map((problem) => (
            <li
              key={`${problem.line}:${problem.column}:${problem.message}`}
              data-tone={problem.severity === 'error' ? 'bad' : 'wait'}
            >
              <button type="button" onClick={() => goTo(problem.line, problem.column)}>
                {problem.severity === 'error' ? (
                  <IconCircleX size={15} aria-label="error" />
                ) : (
                  <IconAlertTriangle size={15} aria-label="warning" />
                )}
                <span className="at mono">
                  {problem.line}:{problem.column}
                </span>
                <span>
                  <Sentence text={problem.message} />
                </span>
              </button>
              {problem.fix && !readOnly ? (
                <button type="button" className="fix" onClick={() => repair(problem.fix!)}>
                  {problem.fix.title}
                </button>
              ) : null}
            </li>
          ))}
        </ul>
      ) : null}
      <div className="editor-foot" role="status">
        {problems === undefined ? (
          'checking…'
        ) : errors > 0 ? (
          <>
            <IconCircleX size={14} aria-hidden /> {count(errors, 'problem')}
          </>
        ) : warnings > 0 ? (
          <>
            <IconAlertTriangle size={14} aria-hidden /> {count(warnings, 'warning')}
          </>
        ) : (
          <>
            <IconCircleCheck size={14} aria-hidden /> no problems
          </>
        )}
      </div>
    </div>
  );
}

/** Signals that the policy has a new id, so its text is checked again. */
const renamed = StateEffect.define<null>();

/**
 * Handles typing over a selection. The browser would style the new text like the old, using attributes that the content security
 * policy does not allow.
 */
function typeOver(event: InputEvent, view: EditorView): boolean {
  const { from, to, empty } = view.state.selection.main;
  const { data } = event;
  if (event.inputType !== 'insertText' || event.isComposing || empty || !data || view.state.readOnly) return false;
  const typed = () =>
    view.state.update(view.state.replaceSelection(data), { userEvent: 'input.type', scrollIntoView: true });
  if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, data, typed)))
    view.dispatch(typed());
  return true;
}

const WORST = ['ok', 'wait', 'bad'] as const;

/** The worst mark of a line, with the text of all of them. Screen readers find the same in a list on the page. */
class ReachMarker extends GutterMarker {
  readonly #tone: ReachMark['tone'];
  readonly #title: string;

  constructor(marks: readonly ReachMark[]) {
    super();
    this.#tone = WORST[Math.max(...marks.map(({ tone }) => WORST.indexOf(tone)))] ?? 'ok';
    this.#title = marks.map(({ title }) => title).join('\n');
  }

  override toDOM() {
    const dom = document.createElement('span');
    dom.className = 'cm-reach-mark';
    dom.dataset.tone = this.#tone;
    dom.title = this.#title;
    return dom;
  }
}

const setMarks = StateEffect.define<RangeSet<GutterMarker>>();
const markField = StateField.define<RangeSet<GutterMarker>>({
  create: () => RangeSet.empty,
  update: (old, transaction) => {
    const set = transaction.effects.find((effect) => effect.is(setMarks));
    return set ? set.value : old.map(transaction.changes);
  },
});
const reachMarks = [markField, gutter({ class: 'cm-reach', markers: (view) => view.state.field(markField) })];

function markersOf(doc: Text, marks: readonly ReachMark[]): RangeSet<GutterMarker> {
  const lines = Map.groupBy(
    marks.filter(({ line }) => line <= doc.lines),
    ({ line }) => line,
  );
  const ranges = [...lines].sort(([a], [b]) => a - b);
  return RangeSet.of(ranges.map(([line, found]) => new ReachMarker(found).range(doc.line(line).from)));
}

/** What the server finds in a policy text; undefined when it cannot be reached. */
async function policyProblems(text: string, policyId: string | undefined): Promise<Problem[] | undefined> {
  const answer = await api.policies.validate.mutate({ dsl_source: text, id: policyId }).catch(() => undefined);
  return (
    answer && [
      ...answer.errors.map((error) => ({ ...error, severity: 'error' as const })),
      ...answer.warnings.map((warning) => ({ ...warning, severity: 'warning' as const })),
    ]
  );
}

/** The range of a problem: the word at its position. The text may be shorter by now. */
function placeOf(doc: Text, { line, column }: { line: number; column: number }): { from: number; to: number } {
  const at = doc.line(Math.min(Math.max(line, 1), doc.lines));
  const from = Math.min(at.from + column - 1, at.to);
  const word = /^@?\w+|^\S/.exec(doc.sliceString(from, at.to));
  return { from, to: from + (word?.[0].length ?? 0) };
}

function help({ state }: EditorView, pos: number) {
  const line = state.doc.lineAt(pos);
  for (const match of line.text.matchAll(/@?[A-Za-z_]\w*/g)) {
    const from = line.from + match.index;
    const end = from + match[0].length;
    if (pos < from || pos > end) continue;
    const found = helpFor(match[0]);
    if (!found) return null;
    return {
      pos: from,
      end,
      above: true,
      create: () => {
        const dom = document.createElement('div');
        dom.className = 'editor-help';
        const title = dom.appendChild(document.createElement('strong'));
        title.className = 'mono';
        title.textContent = found.title;
        dom.appendChild(document.createElement('div')).textContent = found.text;
        return { dom };
      },
    };
  }
  return null;
}
