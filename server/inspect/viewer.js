/** Shows the machines that stream their steps here, how each stands, and the events in their order. */

/** What the page keeps; the oldest goes first. */
const MOST_STEPS = 2000;

const at = (id) => document.getElementById(id);
const [actorList, stepList, stateList, connection] = ['actors', 'steps', 'states', 'connection'].map(at);

/** sessionId -> its definition, state, list item */
const actors = new Map();
let chosen;

// everything that is shown is set as text: nothing of it is markup
function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties });
}

function actorOf(sessionId) {
  let actor = actors.get(sessionId);
  if (!actor) {
    const button = element('button', '', { type: 'button', ariaPressed: 'false' });
    button.addEventListener('click', () => choose(chosen === sessionId ? undefined : sessionId));
    const item = element('li', '');
    item.append(button);
    actorList.append(item);
    actor = { button, states: [], state: '' };
    actors.set(sessionId, actor);
  }
  return actor;
}

function choose(sessionId) {
  chosen = sessionId;
  for (const [id, { button }] of actors) button.ariaPressed = String(id === chosen);
  for (const step of stepList.children) step.hidden = chosen !== undefined && step.dataset.actor !== chosen;
  drawStates();
}

function drawStates() {
  const { states, state } = actors.get(chosen) ?? { states: [] };
  stateList.replaceChildren(
    ...states.map((name) => element('span', name, name === state ? { ariaCurrent: 'step' } : {})),
  );
}

function showStep(sessionId, { event, snapshot, createdAt }) {
  const actor = actorOf(sessionId);
  actor.state = String(snapshot.value);
  actor.button.textContent = `${sessionId}: ${actor.state}`;
  const { type, ...more } = event;
  const step = element('li', '', { hidden: chosen !== undefined && sessionId !== chosen });
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
  if (stepList.children.length > MOST_STEPS) stepList.firstElementChild.remove();
  if (sessionId === chosen) drawStates();
}

const source = new EventSource('/steps');
source.addEventListener('open', () => {
  connection.textContent = 'connected';
});
source.addEventListener('error', () => {
  connection.textContent = 'the relay does not answer';
});
source.addEventListener('message', ({ data }) => {
  const message = JSON.parse(data);
  if (message.type === '@xstate.actor') {
    actorOf(message.sessionId).states = Object.keys(JSON.parse(message.definition).states);
    if (message.sessionId === chosen) drawStates();
  }
  if (message.type === '@xstate.snapshot') showStep(message.sessionId, message);
});
