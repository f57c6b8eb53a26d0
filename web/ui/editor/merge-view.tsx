import { MergeView, unifiedMergeView } from '@codemirror/merge';
import { EditorState } from '@codemirror/state';
import { EditorView, lineNumbers } from '@codemirror/view';
import { useEffect, useRef } from 'react';
import { cedar } from './cedar.ts';
import { look } from './look.ts';

/** Two texts side by side or in one column, with unchanged lines folded. */
export default function TextDiff(props: {
  before: string;
  after: string;
  sideBySide: boolean;
  label: string;
  plain: boolean;
}) {
  const { before, after, sideBySide, label, plain } = props;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const common = [
      look,
      ...(plain ? [] : [cedar]),
      lineNumbers(),
      EditorView.lineWrapping,
      EditorState.readOnly.of(true),
      EditorView.editable.of(false),
    ];
    const named = (name: string) =>
      EditorView.contentAttributes.of({
        'aria-label': name,
        tabindex: '0',
        role: 'textbox',
        'aria-readonly': 'true',
        'aria-multiline': 'true',
      });
    const collapseUnchanged = { margin: 3, minSize: 6 };
    const parent = box.current!;
    const view = sideBySide
      ? new MergeView({
          parent,
          a: { doc: before, extensions: [common, named(`${label}: before`)] },
          b: { doc: after, extensions: [common, named(`${label}: after`)] },
          collapseUnchanged,
          gutter: true,
        })
      : new EditorView({
          parent,
          state: EditorState.create({
            doc: after,
            extensions: [
              common,
              named(label),
              unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged }),
            ],
          }),
        });
    return () => view.destroy();
  }, [before, after, sideBySide, label, plain]);
  return <div className="editor" ref={box} />;
}
