/** Shows the state machines of the connected servers, their current states, and their events in order. */

/** Steps kept on the page; the oldest is dropped first. */
const MAX_STEPS = 2000;

const at = (id) => document.getElementById(id);
const [actorList, stepList, stateList, connection] = ['actors', 'steps', 'states', 'connection'].map(at);

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
