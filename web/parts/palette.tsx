import { Modal, TextInput, VisuallyHidden } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from 'react';
import { useMe } from '../lib/session.ts';
import { type Answers, trpc } from '../lib/trpc.ts';
import { Hostile, Name } from '../ui/hostile.tsx';
import { statusWord } from '../ui/status.tsx';
import { When } from '../ui/time.tsx';
import { NAV } from './nav.ts';
import './palette.css';

type Found = Answers['find']['found'][number];
type Navigate = ReturnType<typeof useNavigate>;

interface Option {
  key: string;
  kind: string;
  label: ReactNode;
  detail: ReactNode;
  open: (navigate: Navigate) => unknown;
}

/** The label of each kind, and where its page is. */
const KINDS: { [K in Found['kind']]: [word: string, open: (found: Found, navigate: Navigate) => unknown] } = {
  policy: ['Policy', ({ id }, go) => go({ to: '/policies/$id', params: { id } })],
  rule: [
    'Rule',
    ({ id }, go) => go({ to: '/policies/$id', params: { id: id.split('#')[0]! }, search: { tab: 'rules' } }),
  ],
  hold: ['Hold', ({ id }, go) => go({ to: '/approvals/$id', params: { id } })],
  agent: ['Agent', ({ id }, go) => go({ to: '/agents/agent', search: { id } })],
  tool: ['Tool', ({ id, detail }, go) => go({ to: '/tools/tool', search: { server: detail, name: id } })],
  person: ['Person', ({ id }, go) => go({ to: '/team', search: { q: id } })],
  session: ['Session', ({ id }, go) => go({ to: '/sessions/session', search: { id } })],
  trace: ['Trace', ({ id }, go) => go({ to: '/decisions', search: { trace_id: id } })],
  decision: ['Decision', ({ id }, go) => go({ to: '/decisions', search: { event: id } })],
  audit: ['Audit record', ({ id }, go) => go({ to: '/audit', search: { record: id } })],
};

/** The label and details of a result. A hold has no name: the tool is shown, and whose action it is. */
function wordsOf({ kind, id, detail, agent_id = '', created_at }: Found): Pick<Option, 'label' | 'detail'> {
  if (kind === 'policy') return { label: <Hostile text={id} />, detail: statusWord('policy', detail) };
  const [, status, tool] = (kind === 'hold' && /^(\w+)(?:: (.*))?$/s.exec(detail)) || [];
  if (status === undefined) {
    return { label: <Hostile text={id} name />, detail: detail ? <Hostile text={detail} name /> : null };
  }
  const whose = (
    <>
      {statusWord('hold', status)}, by <Name text={agent_id} />
      {created_at === undefined ? null : (
        <>
          , <When at={created_at} />
        </>
      )}
    </>
  );
  return { label: <Hostile text={tool ?? id} name />, detail: whose };
}

/** Pages, and everything else with a name or an id: typed, chosen with the arrows, opened with Enter. */
export default function Palette({ onClose }: { onClose: () => void }) {
  const me = useMe();
  const navigate = useNavigate();
  const [text, setText] = useState('');
  const [sought] = useDebouncedValue(text.trim(), 150);
  const [at, setAt] = useState(0);
  const list = useId();
  const chosen = useRef<HTMLDivElement>(null);
  const [before] = useState(() => document.activeElement);
  useEffect(
    () => () => {
      if (document.activeElement === document.body && before instanceof HTMLElement)
        before.focus({ preventScroll: true });
    },
    [before],
  );
  const query = useQuery(
    trpc.find.queryOptions(
      { q: sought },
      { enabled: sought.length > 1, placeholderData: keepPreviousData, staleTime: 10_000, retry: false },
    ),
  );
  const word = text.trim().toLowerCase();
  const pages: Option[] = NAV.filter(({ least, label }) => me.has(least) && label.toLowerCase().includes(word)).map(
    ({ to, label, group }) => ({
      ...{ key: `page ${to}`, kind: 'Page', label, detail: group },
      open: (go) => go({ to: to as '/' }),
    }),
  );
  const things: Option[] = (word.length > 1 ? (query.data?.found ?? []) : []).map((found) => ({
    key: `${found.kind} ${found.detail} ${found.id}`,
    kind: KINDS[found.kind][0],
    ...wordsOf(found),
    open: (go) => KINDS[found.kind][1](found, go),
  }));
  const options = [...pages, ...things];
  const index = Math.min(at, options.length - 1);
  const searching = word.length > 1 && (query.isFetching || sought.toLowerCase() !== word);
  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever another one is chosen
  useEffect(() => {
    // in some browsers it returns a promise, which is not a cleanup function
    void chosen.current?.scrollIntoView({ block: 'nearest' });
  }, [index]);

  const open = (option: Option | undefined) => {
    if (!option) return;
    onClose();
    void option.open(navigate);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const last = options.length - 1;
    const next = { ArrowDown: index >= last ? 0 : index + 1, ArrowUp: index <= 0 ? last : index - 1 }[event.key];
    if (next !== undefined) setAt(next);
    // the list does not match the typed text yet: Enter must not open something else
    else if (event.key === 'Enter' && !searching) open(options[index]);
    else return;
    event.preventDefault();
  };
  return (
    <Modal.Root opened onClose={onClose} size="lg" yOffset="10vh">
      <Modal.Overlay />
      <Modal.Content aria-label="Find">
        <Modal.Body p="sm">
          <TextInput
            // on the first render: the dialog's focus trap would move the focus only later, after keys typed in the meantime
            autoFocus
            data-autofocus
            aria-label="Find a page, policy, rule, hold, agent, tool, session or record"
            placeholder="Page, policy, rule, hold, agent, tool, session, id or hash"
            value={text}
            spellCheck={false}
            autoComplete="off"
            role="combobox"
            aria-expanded={options.length > 0}
            aria-controls={list}
            aria-activedescendant={options.length > 0 ? `${list}-${index}` : undefined}
            aria-autocomplete="list"
            onChange={(event) => {
              setText(event.currentTarget.value);
              setAt(0);
            }}
            onKeyDown={onKeyDown}
          />
          <div id={list} role="listbox" aria-label="Found" className="palette" aria-busy={searching || undefined}>
            {options.map((option, n) => (
              // biome-ignore lint/a11y/useKeyWithClickEvents: the field above has the keys
              <div
                key={option.key}
                id={`${list}-${n}`}
                ref={n === index ? chosen : undefined}
                role="option"
                tabIndex={-1}
                aria-selected={n === index}
                onClick={() => open(option)}
              >
                <span className="palette-label">{option.label}</span>
                <span className="dim cut palette-detail">{option.detail}</span>
                <span className="palette-kind">{option.kind}</span>
              </div>
            ))}
          </div>
          <VisuallyHidden role="status">{searching ? 'searching' : `${options.length} found`}</VisuallyHidden>
          {options.length === 0 && !searching ? (
            <p className="dim palette-none">
              {query.error
                ? 'The search failed. Try again.'
                : 'Nothing has this name or id. Sessions and records are found by their whole id.'}
            </p>
          ) : null}
        </Modal.Body>
      </Modal.Content>
    </Modal.Root>
  );
}
