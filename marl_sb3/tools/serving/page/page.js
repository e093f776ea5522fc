// The page: it sends commands to `live`, and shows the moments that come back. See marl_sb3/evaluation/session.py.

import { Chart, Stage, legendMark, numberText, sceneInWords } from "./draw.js";

const PACES = [0.5, 1, 2, 5, 10, 15, 30, 60, 1000];
const RETRY_MS = [500, 1000, 2000, 4000];
const MOST_ROWS = 10; // of choices that are listed of a policy
const ARROWS = { up: "↑", right: "→", down: "↓", left: "←" };
const KEYS = [
  { ArrowUp: "up", ArrowRight: "right", ArrowDown: "down", ArrowLeft: "left" },
  { w: "up", d: "right", s: "down", a: "left" },
];

const at = (id) => document.getElementById(id);
const stage = new Stage(at("stage"));
const chart = new Chart(at("chart"));

let socket = null;
let token = takeToken();
let hello = null;
let moment = null;
let films = "";
let attempts = 0;
let isFinal = false;
let first = null; // the agent that moves first in this episode; null: all act at once
let agents = []; // of the env: {agent, policy, control, row, ends: returns of finished episodes, digits}
let wanted = {}; // what a new connection is told: the settings that the viewer has changed
let drawing = Promise.resolve(); // pictures are shown one after the other
const held = new Map(); // agent -> directions that are pressed

// --- The connection --------------------------------------------------------------------------------------------

/** The token from the fragment of the address, which is then removed, or from an earlier visit in this tab. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

function connect() {
  const address = new URL("live", location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  address.hash = "";
  let protocols = [];
  if (token && /^[\w.~+-]+$/.test(token)) protocols = ["marl-sb3", `token.${token}`];
  else if (token) address.searchParams.set("token", token); // it has characters that a subprotocol may not have
  socket = new WebSocket(address, protocols);
  socket.binaryType = "arraybuffer";
  socket.addEventListener("message", receive);
  socket.addEventListener("close", lost);
}

function send(command) {
  if (socket.readyState === WebSocket.OPEN && hello) socket.send(JSON.stringify(command));
}

async function lost() {
  const wasConnected = hello !== null;
  hello = null;
  enableTransport(false);
  document.body.classList.add("lost");
  at("connection").textContent = "Not connected";
  if (isFinal) return;
  if (!wasConnected && await isRefused()) {
    askToken();
    return;
  }
  notify("The server does not answer. Connecting again …");
  setTimeout(connect, RETRY_MS[Math.min(attempts, RETRY_MS.length - 1)]);
  attempts += 1;
}

/** Whether the server is there and wants another token. */
async function isRefused() {
  try {
    const answer = await fetch("films/-/-", { headers: authorization() });
    return answer.status === 401;
  } catch {
    return false;
  }
}

function authorization() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function askToken() {
  at("ask").showModal();
  at("connection").textContent = "Waiting for the token";
}

at("ask").addEventListener("close", () => {
  token = at("token").value;
  sessionStorage.setItem("token", token);
  at("token").value = "";
  connect();
});

function notify(words) {
  const notice = at("notice");
  if (notice.textContent !== words) notice.textContent = words;
  notice.hidden = !words;
}

// --- Messages --------------------------------------------------------------------------------------------------

const RECEIVERS = {
  hello: greet,
  moment: showMoment,
  film: fetchFilm,
  problem: showProblem,
  films: ({ folder }) => { films = folder; },
};

function receive({ data }) {
  if (data instanceof ArrayBuffer) drawing = drawing.then(() => stage.showPicture(data)).catch(() => {});
  else {
    const message = JSON.parse(data);
    RECEIVERS[message.type](message);
  }
}

function showProblem({ message, is_final }) {
  isFinal = is_final;
  notify(message);
  setTimeout(() => at("notice").textContent === message && !isFinal && notify(""), 8000);
}

function greet(message) {
  hello = message;
  attempts = 0;
  moment = null;
  document.body.classList.remove("lost");
  at("connection").textContent = "Connected";
  notify("");
  document.title = `${hello.env} · marl_sb3`;
  at("env").textContent = hello.env;
  at("stage").setAttribute("aria-label", hello.env);
  at("seed").placeholder = hello.seed ?? "new";
  const known = [...at("checkpoint").options].slice(0, 3);
  at("checkpoint").replaceChildren(...known, ...hello.checkpoints.map((name) => new Option(name, name)));
  at("checkpoint").value = wanted.begin?.checkpoint ?? "";
  const named = hello.opponents.map(({ name, about }) => new Option(about ? `${name} · ${about}` : name, name));
  at("opponent").replaceChildren(new Option("", ""), ...named);
  at("opponent-label").hidden = at("swaps-label").hidden = named.length === 0;
  agents = hello.agents.map((card) => ({ ...card, ends: [], digits: 0 }));
  stage.agents = agents.map(({ agent }) => agent);
  at("score").replaceChildren(...agents.map(scoreRow));
  chart.clear(stage.agents);
  Object.values(wanted).forEach(send);
}

async function fetchFilm({ name, frames }) {
  const answer = await fetch(films + name, { headers: authorization() });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${hello.env.replace(/[^\w.-]+/g, "_")}-${frames}-frames.gif`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  at("said").textContent = `A film of ${frames} frames is saved.`;
}

// --- A moment --------------------------------------------------------------------------------------------------

function showMoment(next) {
  const isNew = !moment || next.episode !== moment.episode || next.step < moment.step || next.seed !== moment.seed;
  if (isNew) {
    chart.clear(stage.agents);
    first = agents.length > 1 && next.step === 0 && next.to_act.length === 1 ? next.to_act[0] : null;
  }
  const moved = !isNew && next.step > moment.step;
  const ended = next.is_over && !moment?.is_over;
  const before = moment;
  moment = next;
  if (!before) at("opponent").value = wanted.begin?.against ?? moment.against;
  stage.taken = moment.taken;
  if (moment.scene) stage.showScene(moment.scene, moved && moment.steps_per_s <= 15);
  else if (String(before?.taken) !== String(moment.taken)) stage.draw();
  chart.add(moment.step, moment.returns);
  if (ended) agents.forEach((each) => each.ends.push(moment.returns[each.agent]));
  if (isNew && moment.episode === 1 && before) {
    agents.forEach((each) => { each.ends = []; });
    at("result").hidden = true;
  }
  showWords(ended, moved);
  showTransport();
  showScore();
  showInsight();
  if (String(before?.taken) !== String(moment.taken)) buildPads();
  showPads();
  showTarget();
  const rest = moment.taken.length < agents.length ? "policies play the other agents" : "you play all agents";
  at("opponent").options[0].text = `none: ${moment.taken.length ? rest : "policies play all agents"}`;
  at("joined").hidden = !moment.changed || moment.is_over;
}

/** What tells an agent apart in a game by turns: `red, moves first`. */
function sideOf({ agent, mark }) {
  let turn = "";
  if (first === agent) turn = "moves first";
  else if (first && agents.length === 2) turn = "moves second";
  return [mark, turn].filter(Boolean).join(", ");
}

function showWords(ended, moved) {
  const { episode, step, playing, awaited, is_over } = moment;
  at("run").textContent = [hello.run, moment.checkpoint].filter(Boolean).join(" · ");
  const repeats = hello.seed === null && at("deterministic").value === "";
  const sampled = repeats ? "All episodes start alike: actions are sampled" : "";
  at("why").textContent = [moment.checkpoint_why, sampled].filter(Boolean).join(". ");
  at("clock").textContent = `Episode ${episode} · step ${step} · seed ${moment.seed}`;
  let state = playing ? "" : "Paused";
  if (awaited.length) state = agents.length > 1 ? `Your move, ${awaited.join(" and ")}` : "Your move";
  if (is_over) state = "Episode over";
  at("state").textContent = state;
  at("undrawn").hidden = !moment.why_not_drawn;
  at("stage").hidden = Boolean(moment.why_not_drawn);
  if (moment.why_not_drawn) at("undrawn").textContent = `This env cannot be drawn: ${moment.why_not_drawn}`;
  const returns = agents.map((each) => `${each.agent} ${returnText(each, moment.returns[each.agent])}`).join(", ");
  const seen = sceneInWords(stage.scene, stage.agents); // a moment brings a scene only if it has changed
  if (!playing || awaited.length) {
    at("stage").setAttribute("aria-label", `${hello.env}, step ${step}. ${seen}Returns: ${returns}`);
  }
  at("tally").textContent = moment.tally;
  at("tally").hidden = !moment.tally;
  const result = moment.result && `${moment.result}. `;
  if (ended) {
    at("result").textContent = `Episode ${episode}: ${result}Returns: ${returns}`;
    at("result").hidden = false;
    at("said").textContent = `Episode ${episode} is over after ${step} steps. ${result}Returns: ${returns}. ${moment.tally}`;
  } else if (moved && awaited.length) {
    at("said").textContent = `Step ${step}. ${movesInWords()}${seen}Returns: ${returns}`;
  }
}

/** The latest actions of those that are not played here, where actions have names. */
function movesInWords() {
  const moves = Object.entries(moment.actions).filter(([agent]) => !moment.taken.includes(agent)).map(([agent, action]) => {
    const { control } = agents.find((each) => each.agent === agent);
    return control.names.length ? `${agent}: ${choiceName(control, 0, action - control.starts[0])}. ` : "";
  });
  return moves.join("");
}

/** Buttons are there to be pressed once there is a moment, which says what they do. */
function enableTransport(isOn) {
  for (const id of ["play", "step", "again", "film"]) at(id).disabled = !isOn;
}

function showTransport() {
  enableTransport(true);
  const { playing, film_frames, steps_per_s } = moment;
  at("play").textContent = playing ? "Pause" : "Play";
  at("film").setAttribute("aria-pressed", film_frames !== null);
  at("film").textContent = film_frames === null ? "Record" : `Save GIF (${film_frames})`;
  const paces = PACES.map((pace) => Math.abs(Math.log(pace / steps_per_s)));
  if (document.activeElement !== at("pace")) at("pace").value = paces.indexOf(Math.min(...paces));
  const text = steps_per_s >= 1000 ? "fastest" : `${numberText(steps_per_s)} ${steps_per_s === 1 ? "step" : "steps"}/s`;
  at("pace-is").textContent = text;
  at("pace").setAttribute("aria-valuetext", text);
}

// --- The score -------------------------------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function scoreRow(each, number) {
  const { agent, control } = each;
  const radio = make("input", { type: "radio", name: "selected", value: agent });
  radio.addEventListener("change", () => send({ do: "select", agent }));
  radio.setAttribute("aria-label", `${agent}: look at its policy`);
  const take = make("button", { type: "button", className: "small", disabled: Boolean(control.why_not) });
  if (control.why_not) take.title = control.why_not;
  take.addEventListener("click", () => toggle(agent));
  each.row = { radio, take, now: make("td", { className: "number" }), mean: make("td", { className: "number" }) };
  each.row.player = make("small");
  const names = make("span", {}, agent, " ", each.row.player);
  const name = make("label", { className: "agent" }, radio, legendMark(number), names);
  return make("tr", {}, make("td", {}, name), each.row.now, each.row.mean, make("td", { className: "end" }, take));
}

function toggle(agent) {
  const isTaken = moment.taken.includes(agent);
  send({ do: isTaken ? "release" : "take", agent });
  if (!isTaken) at("stage").focus({ preventScroll: true }); // else the space bar would give the agent back
}

/** A return; with digits behind the point once the agent's returns have some. */
function returnText(each, value) {
  if (!Number.isInteger(value)) each.digits = 2;
  return numberText(value, each.digits);
}

function showScore() {
  for (const each of agents) {
    const { radio, take, now, mean, player } = each.row;
    const isTaken = moment.taken.includes(each.agent);
    radio.checked = each.agent === moment.selected;
    const name = moment.against || isTaken ? moment.players[each.agent].replaceAll("/", "/\u200b") : ""; // may break there
    player.textContent = [name, sideOf(each)].filter(Boolean).join(" · ");
    now.textContent = returnText(each, moment.returns[each.agent] ?? 0);
    const sum = each.ends.reduce((total, end) => total + end, 0);
    mean.textContent = each.ends.length ? numberText(sum / each.ends.length, 2) : "–";
    take.textContent = isTaken ? "Give back" : "Take over";
    take.setAttribute("aria-label", `${take.textContent} ${each.agent}`);
  }
  const count = agents[0].ends.length;
  at("mean-title").textContent = count > 1 ? `Mean of ${count}` : "Mean";
  const returns = agents.map((each) => `${each.agent} ${each.row.now.textContent}`);
  at("chart").setAttribute("aria-label", `Returns in this episode: ${returns.join(", ")}`);
}

// --- The policy ------------------------------------------------------------------------------------------------

function choiceName(control, part, choice) {
  return control.names[choice] ?? String(control.starts[part] + choice);
}

/** The rows of the list: {label, from, to, amount, isChosen}, from and to in shares of the bar; or {part}. */
function insightRows({ probabilities, q_values, action, spreads }, control) {
  if (control.sizes.length === 0) {
    return [action].flat(3).map((number, index) => {
      const [low, high] = [control.low[index] ?? -1, control.high[index] ?? 1];
      const share = (value) => Math.min(1, Math.max(0, (value - low) / (high - low)));
      const zero = share(0);
      const spread = spreads[index] === undefined ? "" : ` ± ${spreads[index].toFixed(2)}`;
      const amount = numberText(number, 2) + spread;
      const ends = [zero, share(number)].sort((a, b) => a - b);
      return { label: `action ${index}`, from: ends[0], to: ends[1], amount, isChosen: true };
    });
  }
  const parts = probabilities.length ? probabilities : [q_values];
  const chosen = [action].flat();
  return parts.flatMap((part, index) => {
    const [low, high] = probabilities.length ? [0, 1] : [Math.min(0, ...part), Math.max(0, ...part)];
    const rows = part.map((number, choice) => ({
      label: choiceName(control, index, choice),
      from: (Math.min(0, number) - low) / (high - low || 1),
      to: (Math.max(0, number) - low) / (high - low || 1),
      amount: probabilities.length ? `${(100 * number).toFixed(1)} %` : numberText(number, 2),
      isChosen: control.starts[index] + choice === chosen[index],
      number,
    }));
    const most = rows.length > MOST_ROWS ? rows.sort((a, b) => b.number - a.number).slice(0, MOST_ROWS) : rows;
    return parts.length > 1 ? [{ part: `part ${index + 1}` }, ...most] : most;
  });
}

function showInsight() {
  const { insight, selected, is_over, against, players, taken } = moment;
  const { control, ...card } = agents.find(({ agent }) => agent === selected);
  const policy = against && !taken.includes(selected) ? players[selected] : card.policy;
  at("insight-title").textContent = `Policy of ${selected}${policy === selected ? "" : `: ${policy}`}`;
  const value = insight?.value ?? null;
  at("value").textContent = value === null ? "" : `value ${numberText(value, 2)}`;
  at("explained").textContent = insight ? explained(insight, taken.includes(selected)) : "";
  at("insight-note").textContent = insight ? insight.note : is_over ? "" : `${selected} waits.`;
  const rows = insight ? insightRows(insight, control) : [];
  if (rows.length === 0 && is_over) return;
  const list = at("insight");
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach((row, index) => {
    const item = list.children[index] ?? list.appendChild(insightItem());
    item.className = row.part ? "part" : row.isChosen ? "chosen" : "";
    item.ariaCurrent = Boolean(row.isChosen);
    const [label, bar, amount] = item.children;
    bar.hidden = amount.hidden = Boolean(row.part);
    label.textContent = row.part ?? row.label;
    if (row.part) return;
    bar.firstChild.style.left = `${100 * row.from}%`;
    bar.firstChild.style.width = `${100 * (row.to - row.from)}%`;
    amount.textContent = row.amount;
  });
}

function explained({ probabilities, q_values, value }, isTaken) {
  const words = [];
  if (probabilities.length) words.push("Bars: the probabilities of its actions.");
  else if (q_values.length) words.push("Bars: Q values, the return that it expects after each action.");
  if (probabilities.length || q_values.length) words.push(isTaken ? "Bold: what it would do." : "Bold: what it does next.");
  if (value !== null) words.push("Value: the return that it expects from here on, discounted, in the scale of its training.");
  return words.join(" ");
}

function insightItem() {
  const bar = make("span", { className: "bar", "aria-hidden": "true" }, make("i"));
  return make("li", {}, make("span"), bar, make("span", { className: "amount" }));
}

// --- Boards whose cells are clicked ----------------------------------------------------------------------------

let pointer = null; // its place over the stage, in shares of its sides

/** The agent and the action that a click at a place of the stage means, with all cells that mean it; or null. */
function targetAt(place) {
  if (!place || !moment || !hello) return null;
  for (const agent of new Set([...moment.awaited, ...moment.taken])) {
    const board = moment.boards[agent];
    const cell = board && cellAt(board, place);
    if (cell && isAllowed(agent, cell[2])) {
      return { agent, action: cell[2], board, cells: board.cells.filter((each) => String(each[2]) === String(cell[2])) };
    }
  }
  return null;
}

function cellAt({ rows, columns, area: [left, top, right, bottom], cells }, [x, y]) {
  const row = Math.floor((rows * (y - top)) / (bottom - top));
  const column = Math.floor((columns * (x - left)) / (right - left));
  return cells.find((cell) => cell[0] === row && cell[1] === column);
}

function isAllowed(agent, action) {
  const control = controlOf(agent);
  const mask = moment.masks[agent];
  return !mask || !control.is_single || mask[action - control.starts[0]];
}

function showTarget() {
  const target = targetAt(pointer);
  at("stage").classList.toggle("aimed", target !== null);
  stage.showTarget(target);
}

function placeOf({ clientX, clientY }) {
  const box = at("stage").getBoundingClientRect();
  return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
}

at("stage").addEventListener("pointermove", (event) => {
  pointer = placeOf(event);
  showTarget();
});
at("stage").addEventListener("pointerleave", () => {
  pointer = null;
  showTarget();
});
at("stage").addEventListener("click", (event) => {
  const target = targetAt(placeOf(event));
  if (target) act(target.agent, target.action);
});

// --- Pads of the agents that a person plays ---------------------------------------------------------------------

function controlOf(agent) {
  return agents.find((each) => each.agent === agent).control;
}

/** The directions that an agent can be steered in: direction -> action of the env, or null for a vector. */
function directions({ sizes, starts, names, is_single, low }) {
  if (low.length === 1) return { left: null, right: null };
  if (low.length === 2) return { up: null, right: null, down: null, left: null };
  if (!is_single) return {};
  const named = Object.keys(ARROWS).map((name) => [name, names.indexOf(name)]).filter(([, index]) => index >= 0);
  if (named.length) return Object.fromEntries(named.map(([name, index]) => [name, starts[0] + index]));
  return sizes[0] === 2 ? { left: starts[0], right: starts[0] + 1 } : {};
}

const act = (agent, action) => send({ do: "act", agent, action });

function press(agent, direction, isDown) {
  const control = controlOf(agent);
  const ways = directions(control);
  if (!(direction in ways)) return false;
  if (control.sizes.length) {
    if (isDown) act(agent, ways[direction]);
    return true;
  }
  const pressed = held.get(agent) ?? new Set();
  const had = pressed.has(direction);
  if (isDown) pressed.add(direction);
  else pressed.delete(direction);
  held.set(agent, pressed);
  if (had !== isDown) act(agent, thrust(control, pressed));
  showPads();
  return true;
}

/** The numbers that the pressed directions stand for; opposite ones cancel. */
function thrust({ low, high }, pressed) {
  const pairs = [["left", "right"], ["down", "up"]].slice(0, low.length);
  return pairs.map(([less, more], index) => {
    const rest = Math.min(high[index], Math.max(low[index], 0));
    if (pressed.has(less) === pressed.has(more)) return rest;
    return pressed.has(more) ? high[index] : low[index];
  });
}

function buildPads() {
  held.clear();
  at("hint").hidden = true;
  at("person").hidden = moment.taken.length === 0;
  const yours = agents.filter(({ agent }) => moment.taken.includes(agent));
  const sides = yours.map((each) => each.agent + (sideOf(each) ? ` (${sideOf(each)})` : ""));
  at("person-title").textContent = `You play ${sides.join(" and ")}`;
  at("pads").replaceChildren(...moment.taken.map(pad));
}

function pad(agent) {
  const control = controlOf(agent);
  const box = make("div", { className: "pad", role: "group", "aria-label": agent });
  box.dataset.agent = agent;
  if (moment.taken.length > 1) box.append(make("p", {}, agent));
  const ways = directions(control);
  if (Object.keys(ways).length) box.append(cross(agent, ways));
  const isSteered = control.names.length > 0 && control.names.every((name) => name in ways);
  if (control.is_single && control.sizes.length && !isSteered) {
    const offered = Array.from({ length: control.sizes[0] }, (_, choice) => choiceButton(agent, control, choice));
    const grid = make("div", { className: control.places.length ? "row board" : "row" }, ...offered);
    control.places.forEach(([row, column], choice) => {
      offered[choice].style.gridArea = `${row + 1} / ${column + 1}`;
    });
    grid.style.setProperty("--columns", 1 + Math.max(...control.places.map(([, column]) => column)));
    box.append(grid);
  } else if (!control.is_single && control.sizes.length) box.append(partsForm(agent, control));
  else if (control.low.length > 2) box.append(...sliders(agent, control));
  return box;
}

function cross(agent, ways) {
  const buttons = Object.keys(ways).map((direction) => {
    const button = make("button", { type: "button", className: direction, "aria-label": direction }, ARROWS[direction]);
    button.dataset.direction = direction;
    button.addEventListener("pointerdown", () => press(agent, direction, true));
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) {
      button.addEventListener(name, () => held.get(agent)?.has(direction) && press(agent, direction, false));
    }
    button.addEventListener("click", ({ detail }) => {
      if (detail !== 0) return; // else by the keyboard or an assistive tool
      press(agent, direction, true);
      setTimeout(() => press(agent, direction, false), 300);
    });
    return button;
  });
  return make("div", { className: "cross" }, ...buttons);
}

function choiceButton(agent, control, choice) {
  const name = choiceName(control, 0, choice);
  const isLine = control.places.length > 0 && control.places.every(([row]) => row === control.places[0][0]);
  const label = isLine ? name.split(" ").at(-1) : name; // of a column: its number
  const button = make("button", { type: "button", "aria-label": name }, label);
  button.dataset.choice = choice;
  button.addEventListener("click", () => act(agent, control.starts[0] + choice));
  return button;
}

function partsForm(agent, control) {
  const selects = control.sizes.map((size, part) => {
    const options = Array.from({ length: size }, (_, choice) => new Option(choiceName(control, part, choice), choice));
    return make("select", { "aria-label": `part ${part + 1}` }, ...options);
  });
  const form = make("form", { className: "row" }, ...selects, make("button", { type: "submit" }, "Move"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(agent, selects.map((select, part) => control.starts[part] + Number(select.value)));
  });
  return form;
}

function sliders(agent, control) {
  const inputs = control.low.map((low, index) => {
    const rest = Math.min(control.high[index], Math.max(low, 0));
    return make("input", { type: "range", min: low, max: control.high[index], step: "any", value: rest });
  });
  const change = () => act(agent, inputs.map((input) => Number(input.value)));
  inputs.forEach((input) => input.addEventListener("input", change));
  return inputs.map((input, index) => make("label", {}, `action ${index}`, input));
}

/** Show what is allowed and what is held. */
function showPads() {
  if (Object.keys(moment.boards).length) at("hint").hidden = false;
  at("wait-label").hidden = !moment.taken.some((agent) => controlOf(agent).sizes.length);
  at("wait").checked = moment.waits;
  for (const box of at("pads").children) {
    const { agent } = box.dataset;
    const control = controlOf(agent);
    const ways = directions(control);
    const mask = moment.masks[agent];
    const mayAct = moment.to_act.includes(agent);
    for (const button of box.querySelectorAll("button")) {
      const { direction, choice } = button.dataset;
      const index = direction === undefined ? choice : ways[direction] - control.starts[0];
      if (control.is_single) button.disabled = Boolean(mask) && mayAct && !mask[index];
      button.classList.toggle("held", Boolean(held.get(agent)?.has(direction)));
    }
  }
}

// --- What the viewer does ----------------------------------------------------------------------------------------

at("play").addEventListener("click", togglePlay);
at("step").addEventListener("click", () => send({ do: "step" }));
at("again").addEventListener("click", begin);
at("anew").addEventListener("click", begin);
at("film").addEventListener("click", () => send({ do: "film", on: moment.film_frames === null }));
at("wait").addEventListener("change", ({ target }) => send({ do: "wait", on: target.checked }));
at("pace").addEventListener("input", ({ target }) => {
  wanted.pace = { do: "pace", steps_per_s: PACES[target.value] };
  send(wanted.pace);
});
at("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  begin();
});

function togglePlay() {
  wanted.play = { do: moment.playing ? "pause" : "play" };
  send(wanted.play);
}

function begin() {
  const [seed, checkpoint, deterministic] = ["seed", "checkpoint", "deterministic"].map((id) => at(id).value);
  wanted.begin = {
    do: "begin",
    seed: seed === "" ? null : Number(seed),
    checkpoint: checkpoint || null,
    deterministic: deterministic === "" ? null : deterministic === "true",
    against: at("opponent").value,
    swaps: at("swaps").checked,
  };
  send(wanted.begin);
}

/** Steer by the keyboard; returns whether the key means something. */
function steer(key, isDown) {
  const isSteered = moment.taken.some((agent, index) => {
    const layouts = moment.taken.length === 1 ? KEYS : KEYS.slice(index, index + 1);
    const direction = layouts.map((layout) => layout[key]).find(Boolean);
    return direction && press(agent, direction, isDown);
  });
  return isSteered || (/^\d$/.test(key) && [...moment.awaited, ...moment.taken].some((agent) => {
    const control = controlOf(agent);
    const choice = control.is_single ? choiceOfDigit(control, Number(key)) : undefined;
    if (!(choice >= 0 && choice < control.sizes[0])) return false;
    if (isDown) act(agent, control.starts[0] + choice);
    return true;
  }));
}

/** On a board, its cells or columns are counted from 1 at the upper left; else the digit is the action. */
function choiceOfDigit({ places, starts }, digit) {
  if (!places.length) return digit - starts[0];
  const inOrder = [...places.keys()].sort((a, b) => places[a][0] - places[b][0] || places[a][1] - places[b][1]);
  return inOrder[digit - 1];
}

const SHORTCUTS = {
  " ": togglePlay,
  ".": () => send({ do: "step" }),
  r: begin,
  t: () => toggle(moment.selected),
};

/** Whether an element needs its keys for itself. */
function usesKey(element, key) {
  if (element.closest("input:not([type=checkbox]), select, dialog")) return true;
  return key === " " && element.closest("button, summary, input") !== null;
}

function onKey(event, isDown) {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!moment || !hello || event.ctrlKey || event.metaKey || event.altKey || usesKey(event.target, key)) return;
  if (steer(key, isDown)) event.preventDefault();
  else if (isDown && !event.repeat && SHORTCUTS[key]) {
    event.preventDefault();
    SHORTCUTS[key]();
  }
}

addEventListener("keydown", (event) => onKey(event, true));
addEventListener("keyup", (event) => onKey(event, false));
addEventListener("blur", () => { // keys that are let go elsewhere are not heard of
  for (const [agent, pressed] of held) [...pressed].forEach((direction) => press(agent, direction, false));
});

connect();
