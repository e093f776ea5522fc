// Draws the env on a canvas, in the pixels that the screen has, and what tells agents apart: a colour, a shape, a dash.

const NUM_LOOKS = 6;
const DASHES = ["", "7 4", "2 3", "12 4 2 4", "1 5", "16 5"];
const GLIDE_MS = 130;
const SVG = "http://www.w3.org/2000/svg";

const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The value of a colour of the theme. */
function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function agentColour(number) {
  return `var(--agent-${number % NUM_LOOKS})`;
}

export function agentDash(number) {
  return DASHES[number % NUM_LOOKS];
}

/** Corners of the shape of an agent around (0, 0), for a radius of 1; null: a circle. */
function corners(number) {
  const polygon = (count, turn, size) => Array.from({ length: count }, (_, corner) => {
    const angle = (2 * Math.PI * corner) / count + turn;
    return [size * Math.sin(angle), -size * Math.cos(angle)];
  });
  return [null, polygon(4, 0, 1.25), polygon(4, Math.PI / 4, 1.25), polygon(3, 0, 1.3), polygon(5, 0, 1.12),
    polygon(3, Math.PI, 1.3)][number % NUM_LOOKS];
}

export function svgElement(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** The mark of an agent as an SVG shape. */
export function svgMark(number, x, y, radius) {
  const points = corners(number);
  const fill = { fill: agentColour(number) };
  if (points === null) return svgElement("circle", { cx: x, cy: y, r: radius, ...fill });
  const placed = points.map(([across, down]) => `${x + across * radius},${y + down * radius}`);
  return svgElement("polygon", { points: placed.join(" "), ...fill });
}

/** The mark of an agent with a piece of its line, for a legend. */
export function legendMark(number) {
  const svg = svgElement("svg", { width: 30, height: 16, viewBox: "0 0 30 16", "aria-hidden": "true" });
  const line = { d: "M0 8H30", class: "trace", "stroke-dasharray": agentDash(number) };
  svg.append(svgElement("path", { ...line, stroke: agentColour(number) }), svgMark(number, 15, 8, 5));
  return svg;
}

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.picture = null;
    this.scene = this.before = null;
    this.changedMs = 0;
    this.agents = [];
    this.taken = [];
    this.target = null; // {board, cells}: where a click would mean something
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show a scene; between two steps of an episode, things glide. */
  showScene(scene, glides) {
    this.before = glides && !still.matches ? this.scene : null;
    this.scene = scene;
    this.picture = null;
    this.changedMs = performance.now();
    this.canvas.style.setProperty("--ratio", scene.kind === "arena" ? scene.width / scene.height : 1);
    this.draw();
  }

  /** Show a picture that the env has rendered: the bytes of a PNG or JPEG file. */
  async showPicture(bytes) {
    const bitmap = await createImageBitmap(new Blob([bytes]));
    this.picture?.close();
    this.picture = bitmap;
    this.scene = null;
    this.canvas.style.setProperty("--ratio", bitmap.width / bitmap.height);
    this.draw();
  }

  /** Mark the cells that mean the same as that below the pointer; null: none. */
  showTarget(target) {
    const [before, now] = [this.target, target].map((each) => each && `${each.agent} ${each.action} ${each.cells}`);
    this.target = target;
    if (before !== now) this.draw();
  }

  draw() {
    const { canvas, pen } = this;
    const box = canvas.getBoundingClientRect();
    const [width, height] = [box.width, box.height].map((side) => Math.round(side * devicePixelRatio));
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    pen.clearRect(0, 0, width, height);
    if (this.picture) {
      pen.imageSmoothingEnabled = width < 2 * this.picture.width;
      pen.imageSmoothingQuality = "high";
      pen.drawImage(this.picture, 0, 0, width, height);
    } else if (this.scene) {
      const passed = this.before ? Math.min(1, (performance.now() - this.changedMs) / GLIDE_MS) : 1;
      const share = 1 - (1 - passed) ** 3;
      if (this.scene.kind === "arena") this.drawArena(width, height, share);
      else this.drawWaterworld(width, share);
      if (passed < 1) requestAnimationFrame(() => this.draw());
    }
    if (this.target) this.drawTarget(width, height, this.target.board, this.target.cells);
  }

  drawTarget(width, height, { rows, columns, area: [left, top, right, bottom] }, cells) {
    const { pen } = this;
    const [wide, high] = [(width * (right - left)) / columns, (height * (bottom - top)) / rows];
    const line = Math.max(3, Math.min(wide, high) / 16);
    const [down, across] = [0, 1].map((part) => cells.map((cell) => cell[part]));
    const [row, column] = [Math.min(...down), Math.min(...across)];
    const [tall, broad] = [Math.max(...down) - row + 1, Math.max(...across) - column + 1];
    const boxes = tall * broad === cells.length ? [[row, column, tall, broad]] : cells.map(([r, c]) => [r, c, 1, 1]);
    for (const [colour, thick] of [[ink("rim"), 2 * line], [ink("accent"), line]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      boxes.forEach(([r, c, rowsOf, columnsOf]) => {
        const [x, y] = [width * left + c * wide, height * top + r * high];
        pen.strokeRect(x + line, y + line, columnsOf * wide - 2 * line, rowsOf * high - 2 * line);
      });
    }
  }

  /** A place between that of the scene before and the present one. */
  between(name, index, share) {
    const [x, y] = this.scene[name][index];
    const before = this.before?.[name]?.[index];
    if (!before || Math.hypot(x - before[0], y - before[1]) > 0.2) return [x, y];
    return [before[0] + share * (x - before[0]), before[1] + share * (y - before[1])];
  }

  // --- The arena ---

  drawArena(width, height, share) {
    const { pen, scene } = this;
    const gap = Math.max(1, Math.round(width / scene.width / 24));
    const side = Math.min((width - gap) / scene.width, (height - gap) / scene.height);
    const edge = (number) => gap + Math.round(number * side);
    const visited = new Set(scene.visited);
    const [tile, trail] = [ink("tile"), ink("trail")];
    pen.fillStyle = ink("grid");
    pen.fillRect(0, 0, width, height);
    for (let cell = 0; cell < scene.width * scene.height; cell += 1) {
      const [row, column] = [Math.floor(cell / scene.width), cell % scene.width];
      const [left, top] = [edge(column), edge(row)];
      pen.fillStyle = visited.has(cell) ? trail : tile;
      pen.fillRect(left, top, edge(column + 1) - left - gap, edge(row + 1) - top - gap);
    }
    scene.cells.forEach((cell, number) => {
      const [x, y] = this.cellCentre(scene, cell);
      const [fromX, fromY] = this.before?.cells ? this.cellCentre(scene, this.before.cells[number]) : [x, y];
      const place = [fromX + share * (x - fromX), fromY + share * (y - fromY)].map((part) => part * side + gap / 2);
      this.drawAgent(number, ...place, 0.31 * side);
    });
  }

  cellCentre(scene, cell) {
    return [(cell % scene.width) + 0.5, Math.floor(cell / scene.width) + 0.5];
  }

  // --- Waterworld: y points upwards, lengths are in sides of the square ---

  drawWaterworld(side, share) {
    const { pen, scene } = this;
    const place = (name, index) => {
      const [x, y] = this.between(name, index, share);
      return [x * side, (1 - y) * side];
    };
    const radius = scene.radius * side;
    pen.fillStyle = ink("tile");
    pen.fillRect(0, 0, side, side);
    scene.obstacles.forEach(([x, y]) => this.disc(x * side, (1 - y) * side, scene.obstacle_radius * side, "obstacle"));
    scene.pursuers.forEach((_, number) => this.drawRays(number, ...place("pursuers", number), side));
    scene.foods.forEach((_, index) => {
      pen.lineWidth = 0.45 * scene.food_size * radius;
      pen.strokeStyle = ink("food");
      pen.beginPath();
      pen.arc(...place("foods", index), 0.78 * scene.food_size * radius, 0, 2 * Math.PI);
      pen.stroke();
    });
    scene.poisons.forEach((_, index) => {
      const [x, y] = place("poisons", index);
      const reach = 1.25 * scene.poison_size * radius;
      this.polygon([[0, -reach], [reach, 0], [0, reach], [-reach, 0]], x, y, ink("poison"));
    });
    scene.pursuers.forEach((_, number) => this.drawAgent(number, ...place("pursuers", number), 1.25 * radius));
  }

  drawRays(number, x, y, side) {
    const { pen, scene } = this;
    pen.strokeStyle = ink(`agent-${number % NUM_LOOKS}`);
    pen.globalAlpha = 0.22;
    pen.lineWidth = Math.max(1, side / 700);
    pen.beginPath();
    for (let ray = 0; ray < scene.n_sensors; ray += 1) {
      const angle = (2 * Math.PI * ray) / scene.n_sensors;
      const reach = scene.sensor_range * side;
      pen.moveTo(x, y);
      pen.lineTo(x + reach * Math.cos(angle), y - reach * Math.sin(angle));
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // --- Shapes ---

  disc(x, y, radius, name) {
    this.pen.fillStyle = ink(name);
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 2 * Math.PI);
    this.pen.fill();
  }

  polygon(points, x, y, colour) {
    const { pen } = this;
    pen.fillStyle = colour;
    pen.beginPath();
    points.forEach(([across, down]) => pen.lineTo(x + across, y + down));
    pen.closePath();
    pen.fill();
  }

  /** Draw an agent's shape with its number; one that a person plays has a ring. */
  drawAgent(number, x, y, radius) {
    const { pen } = this;
    const points = corners(number);
    if (points === null) this.disc(x, y, radius, `agent-${number % NUM_LOOKS}`);
    else this.polygon(points.map((point) => point.map((part) => part * radius)), x, y, ink(`agent-${number % NUM_LOOKS}`));
    if (this.taken.includes(this.agents[number])) {
      pen.strokeStyle = ink("ink");
      pen.lineWidth = Math.max(2, radius / 7);
      pen.beginPath();
      pen.arc(x, y, 1.36 * radius, 0, 2 * Math.PI);
      pen.stroke();
    }
    if (radius < 9) return;
    pen.fillStyle = ink("rim");
    pen.font = `650 ${Math.round(radius)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(number + 1), x, y + 0.06 * radius);
  }
}

/** Say in words what a scene of the arena shows, for those who do not see it. */
export function sceneInWords(scene, agents) {
  if (scene?.kind !== "arena") return "";
  const places = scene.cells.map((cell, number) => {
    const [row, column] = [Math.floor(cell / scene.width) + 1, (cell % scene.width) + 1];
    return `${agents[number]} in row ${row}, column ${column}`;
  });
  return `${places.join("; ")}; ${scene.visited.length} of ${scene.width * scene.height} cells visited. `;
}

/** A chart of the returns of the running episode: a line for each agent, thinned out as it grows. */
export class Chart {
  constructor(svg) {
    this.svg = svg;
    this.clear([]);
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  clear(agents) {
    this.agents = agents;
    this.points = [];
    this.every = 1;
    this.draw();
  }

  add(step, returns) {
    const last = this.points.at(-1);
    if (last && last.step >= step) return;
    if (last && last.isDraft) this.points.pop();
    this.points.push({ step, returns, isDraft: step % this.every !== 0 });
    if (this.points.length > 500) {
      this.every *= 2;
      this.points = this.points.filter((point) => point.step % this.every === 0);
    }
    this.draw();
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const values = this.points.flatMap(({ returns }) => Object.values(returns));
    const ticks = niceTicks(Math.min(0, ...values), Math.max(0, ...values), 3);
    const [low, high] = [ticks[0], ticks.at(-1)];
    const last = Math.max(10, this.points.at(-1)?.step ?? 0);
    const left = 12 + 7 * Math.max(...ticks.map((tick) => numberText(tick).length));
    const across = (step) => left + (step / last) * (width - left - 10);
    const down = (value) => 8 + ((high - value) / (high - low)) * (height - 34);
    const parts = ticks.map((tick) => {
      const group = svgElement("g");
      const rule = { x1: left, x2: width, y1: down(tick), y2: down(tick), class: tick === 0 ? "rule zero" : "rule" };
      group.append(svgElement("line", rule), svgText(numberText(tick), left - 8, down(tick) + 4, "end"));
      return group;
    });
    parts.push(svgText("0", left, height - 6, "start"), svgText(`step ${last}`, width, height - 6, "end"));
    this.agents.forEach((agent, number) => {
      const places = this.points.map(({ step, returns }) => [across(step), down(returns[agent] ?? 0)]);
      if (places.length === 0) return;
      const d = `M${places.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
      const look = { stroke: agentColour(number), "stroke-dasharray": agentDash(number) };
      parts.push(svgElement("path", { d, class: "trace", ...look }), svgMark(number, ...places.at(-1), 4.5));
    });
    this.svg.replaceChildren(...parts);
  }
}

function svgText(text, x, y, anchor) {
  const element = svgElement("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

/** About `count` round numbers that span from low to high. */
function niceTicks(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  const first = Math.floor(low / step + 1e-9);
  for (let number = first; ticks.length < 2 || ticks.at(-1) < high - 1e-9; number += 1) ticks.push(number * step);
  return ticks;
}

/** A number with few digits, and a minus sign that is as wide as a plus. */
export function numberText(value, digits = null) {
  const rounded = digits === null ? Number(value.toPrecision(6)).toString() : value.toFixed(digits);
  return rounded.replace("-", "−");
}
