import { syntaxHighlighting } from '@codemirror/language';
import { EditorView } from '@codemirror/view';
import { classHighlighter } from '@lezer/highlight';
import { styleNonce } from '../theme.ts';
import './editor.css';

/** The style of all policy text. */
export const look = [
  EditorView.cspNonce.of(styleNonce),
  syntaxHighlighting(classHighlighter),
  EditorView.theme({
    '&': { fontSize: '0.8125rem', backgroundColor: 'transparent' },
    '&.cm-focused': { outline: 'none' },
    '.cm-scroller': { fontFamily: 'var(--mantine-font-family-monospace)', lineHeight: '1.6' },
    '.cm-gutters': {
      backgroundColor: 'transparent',
      color: 'var(--mantine-color-dimmed)',
      border: 'none',
      paddingRight: '4px',
    },
    '.cm-content': { caretColor: 'var(--mantine-color-text)' },
    '.cm-cursor': { borderLeftColor: 'var(--mantine-color-text)' },
    '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'light-dark(#f0f5f5, #1b2726)' },
    '.cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground': {
      backgroundColor: 'light-dark(#cfe4e5, #2a4a4d)',
    },
    '.cm-tooltip': {
      border: '1px solid var(--line)',
      borderRadius: '6px',
      backgroundColor: 'var(--surface)',
      color: 'var(--mantine-color-text)',
      boxShadow: '0 4px 16px rgb(0 0 0 / 0.18)',
    },
    '.cm-tooltip-autocomplete > ul > li[aria-selected]': {
      backgroundColor: 'light-dark(#0f5c63, #1a6f76)',
      color: '#fff',
    },
    '.cm-completionDetail': { fontStyle: 'normal', opacity: '0.85' },
    '.cm-diagnostic': { padding: '6px 10px' },
    // the library's own marks are images in data: URLs, which the content security policy does not allow
    '.cm-lintRange-error, .cm-lintRange-warning': {
      backgroundImage: 'none',
      textDecoration: 'underline wavy var(--bad-solid) 1px',
      textUnderlineOffset: '3px',
    },
    '.cm-lintRange-warning': { textDecorationColor: 'var(--wait-solid)' },
    '.cm-lint-marker-error, .cm-lint-marker-warning': {
      content: 'normal',
      width: '9px',
      height: '9px',
      margin: '6px 2px',
      borderRadius: '50%',
      backgroundColor: 'var(--bad-solid)',
    },
    '.cm-lint-marker-warning': { borderRadius: '2px', backgroundColor: 'var(--wait-solid)' },
  }),
];
