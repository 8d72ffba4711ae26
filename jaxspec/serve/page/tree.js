// Draws the draft tree of a round: a line of its own for each leaf.

import { makeSvg } from "./dom.js";

const BOX = 70, TALL = 20, MOST = 8;

// A token as a label: spaces and line ends become visible, long ones are cut.
export function label(text) {
  const shown = text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return shown.length > MOST ? shown.slice(0, MOST - 1) + "…" : shown || "∅";
}

// Returns the line of every row, from 0: a leaf has its own, a parent that of its first child.
// The accepted child comes first, so that the accepted path is straight.
export function layOut(round) {
  const children = round.parent.map(() => []);
  round.parent.forEach((parent, row) => { if (row > 0) children[parent].push(row); });
  const accepted = new Set(round.path);
  const lines = [];
  let next = 0;
  const visit = (row) => {
    const order = [...children[row]].sort((a, b) => accepted.has(b) - accepted.has(a) || a - b);
    lines[row] = next;
    if (order.length === 0) next += 1;
    order.forEach(visit);
  };
  visit(0);
  return lines;
}

// Where a row of a depth and a line is: depth to the right, or, where that is too wide, down.
// Edges leave a box at `out` and reach one at `in`; its probability stands at `note`.
const RIGHT = {
  depth: [84, 0], line: [0, 34], size: [BOX, TALL + 12],
  out: [BOX, TALL / 2], in: [0, TALL / 2], note: [BOX / 2, 30], anchor: "middle",
};
const DOWN = {
  depth: [0, 33], line: [106, 0], size: [BOX + 30, TALL],
  out: [BOX / 2, TALL], in: [BOX / 2, 0], note: [BOX + 4, 14], anchor: "start",
};

const add = (a, b) => [a[0] + b[0], a[1] + b[1]];
const place = (way, depth, line) =>
  [0, 1].map((axis) => depth * way.depth[axis] + line * way.line[axis]);
const measure = (way, depths, lines) =>
  add(place(way, depths - 1, lines - 1), add(way.size, [2, 2]));

function drawNode(way, kind, at, text, note) {
  const put = ([x, y]) => ({ x: at[0] + x, y: at[1] + y });
  return makeSvg("g", { class: kind },
    makeSvg("rect", { ...put([0, 0]), width: BOX, height: TALL, rx: 4 }),
    makeSvg("text", { ...put([BOX / 2, 14]), "text-anchor": "middle" }, label(text)),
    makeSvg("title", {}, `${JSON.stringify(text)} ${note}`),
    makeSvg("text", { ...put(way.note), class: "probability", "text-anchor": way.anchor }, note));
}

function drawEdge(way, kind, parent, child) {
  const from = add(parent, way.out), to = add(child, way.in);
  const middle = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
  const [first, second] = way === RIGHT
    ? [[middle[0], from[1]], [middle[0], to[1]]] : [[from[0], middle[1]], [to[0], middle[1]]];
  return makeSvg("path", { class: kind, d: `M${from}C${first} ${second} ${to}` });
}

// Returns an SVG element; `room` is how wide it should be at most.
export function drawTree(round, room) {
  const lines = layOut(round), accepted = new Set(round.path);
  const last = round.path.at(-1), bonusDepth = round.depth[last] + 1;
  // The bonus has a line of its own where the tree goes on behind the last accepted row.
  const taken = round.parent.includes(last);
  const bonusLine = taken ? Math.max(...lines) + 1 : lines[last];
  const size = [Math.max(...round.depth, bonusDepth) + 1, Math.max(...lines, bonusLine) + 1];
  const narrow = measure(RIGHT, ...size)[0] > room && measure(DOWN, ...size)[0] <= room;
  const way = narrow ? DOWN : RIGHT;
  const at = (row) => place(way, round.depth[row], lines[row]);
  const bonus = place(way, bonusDepth, bonusLine);
  const edges = round.parent.slice(1).map((parent, i) =>
    drawEdge(way, accepted.has(i + 1) ? "accepted" : "", at(parent), at(i + 1)));
  const nodes = round.text.map((text, row) => {
    const kind = row === 0 ? "node root" : accepted.has(row) ? "node accepted" : "node";
    const note = row === 0 ? "" : Math.exp(round.logprob[row]).toFixed(2);
    return drawNode(way, kind, at(row), text, note);
  });
  return frame(measure(way, ...size), `Draft tree of ${round.text.length - 1} tokens`,
    ...edges, drawEdge(way, "accepted", at(last), bonus),
    ...nodes, drawNode(way, "node bonus", bonus, round.bonus, ""));
}

function frame([width, height], name, ...parts) {
  const box = { width, height, viewBox: `-1 -1 ${width} ${height}` };
  return makeSvg("svg", { ...box, role: "img", "aria-label": name }, ...parts);
}
