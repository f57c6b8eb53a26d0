/** Shows the state machines of the connected servers, their current states, and their events in order. */

/** Steps kept on the page; the oldest is dropped first. */
const MAX_STEPS = 2000;

const at = (id) => document.getElementById(id);
const [actorList, stepList, stateList, chartPlace, connection] = [
  'actors',
  'steps',
  'states',
  'chart',
  'connection',
].map(at);

/** machine -> its drawing */
const charts = await fetch('/charts.json').then((response) => response.json());

/** sessionId -> its definition, state, list item */
const actors = new Map();
let selected;

// all content is set as text, never as markup
function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties });
}

function actorOf(sessionId) {
  let actor = actors.get(sessionId);
  if (!actor) {
    const button = element('button', '', { type: 'button', ariaPressed: 'false' });
    button.addEventListener('click', () => select(selected === sessionId ? undefined : sessionId));
    const item = element('li', '');
    item.append(button);
    actorList.append(item);
    actor = { button, states: [], state: '' };
    actors.set(sessionId, actor);
  }
  return actor;
}

function select(sessionId) {
  selected = sessionId;
  for (const [id, { button }] of actors) button.ariaPressed = String(id === selected);
  for (const step of stepList.children) step.hidden = selected !== undefined && step.dataset.actor !== selected;
  drawStates();
}

function drawStates() {
  const { states, state } = actors.get(selected) ?? { states: [] };
  stateList.replaceChildren(
    ...states.map((name) => element('span', name, name === state ? { ariaCurrent: 'step' } : {})),
  );
  const machine = selected?.split(':', 1)[0];
  chartPlace.replaceChildren(...(machine in charts ? [drawChart(charts[machine], state, `Chart of ${selected}`)] : []));
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The machine as a picture: its current state and what leads out of it are lit. The list above it says the same. */
function drawChart({ width, height, start, states, edges, line, final }, current, label) {
  const tip = (id) =>
    svg(
      'marker',
      { id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' },
      svg('path', { d: 'M0 0.8 L7.5 4 L0 7.2 Z' }),
    );
  const edge = ({ from, events, label: box, path }) => {
    const open = from === current;
    return svg(
      'g',
      { class: open ? 'edge open' : 'edge' },
      svg('path', { d: path, 'marker-end': open ? 'url(#tip-open)' : 'url(#tip)' }),
      svg('rect', { x: box.x, y: box.y, width: box.width, height: box.height }),
      ...events.map((event, n) =>
        svg('text', { x: box.x + box.width / 2, y: box.y + line * (n + 0.8), 'text-anchor': 'middle' }, event),
      ),
    );
  };
  const state = ({ id, x, y, width, height }) =>
    svg(
      'g',
      { class: `state${id === current ? ' current' : ''}${final.includes(id) ? ' final' : ''}`, 'data-state': id },
      svg('rect', { x, y, width, height, rx: 8 }),
      svg('text', { x: x + width / 2, y: y + height / 2, dy: '0.35em', 'text-anchor': 'middle' }, id),
    );
  return svg(
    'svg',
    { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label },
    svg('defs', {}, tip('tip'), tip('tip-open')),
    svg('path', { d: start, class: 'start', 'marker-end': 'url(#tip)' }),
    // what leads out of the current state is drawn on top
    ...edges.toSorted((a, b) => Number(a.from === current) - Number(b.from === current)).map(edge),
    ...states.map(state),
  );
}

function showStep(sessionId, { event, snapshot, createdAt }) {
  const actor = actorOf(sessionId);
  actor.state = String(snapshot.value);
  actor.button.textContent = `${sessionId}: ${actor.state}`;
  const { type, ...more } = event;
  const step = element('li', '', { hidden: selected !== undefined && sessionId !== selected });
  step.dataset.actor = sessionId;
  const time = new Date(Number(createdAt)).toISOString();
  const details = element('details', '');
  details.append(
    element('summary', 'details'),
    element('pre', JSON.stringify({ event: more, context: snapshot.context }, null, 2)),
  );
  step.append(
    element('strong', `${type} → ${actor.state}`),
    ' ',
    element('span', sessionId, { className: 'actor' }),
    ' ',
    element('time', time, { dateTime: time }),
    details,
  );
  stepList.append(step);
  if (stepList.children.length > MAX_STEPS) stepList.firstElementChild.remove();
  if (sessionId === selected) drawStates();
}

const source = new EventSource('/steps');
source.addEventListener('open', () => {
  connection.textContent = 'connected';
});
source.addEventListener('error', () => {
  connection.textContent = 'the relay is not reachable';
});
source.addEventListener('message', ({ data }) => {
  const message = JSON.parse(data);
  if (message.type === '@xstate.actor') {
    actorOf(message.sessionId).states = Object.keys(JSON.parse(message.definition).states);
    if (message.sessionId === selected) drawStates();
  }
  if (message.type === '@xstate.snapshot') showStep(message.sessionId, message);
});
