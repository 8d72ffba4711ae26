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
const RIGHT = { depth: [84, 0], line: [0, 34], out: [BOX, TALL / 2], in: [0, TALL / 2] };
const DOWN = { depth: [0, 48], line: [78, 0], out: [BOX / 2, TALL], in: [BOX / 2, 0] };

const place = (way, depth, line) =>
  [0, 1].map((axis) => depth * way.depth[axis] + line * way.line[axis]);
const add = (a, b) => [a[0] + b[0], a[1] + b[1]];

function measure(way, depths, lines) {
  return add(place(way, depths - 1, lines - 1), [BOX + 2, TALL + 14]);
}

function drawNode(kind, [x, y], text, note) {
  const middle = { x: x + BOX / 2, "text-anchor": "middle" };
  return makeSvg("g", { class: kind },
    makeSvg("rect", { x, y, width: BOX, height: TALL, rx: 4 }),
    makeSvg("text", { ...middle, y: y + 14 }, label(text)),
    makeSvg("title", {}, `${JSON.stringify(text)} ${note}`),
    makeSvg("text", { ...middle, y: y + 30, class: "probability" }, note));
}

// `note`: whether the parent has a figure below it.
function drawEdge(way, kind, parent, child, note) {
  const from = add(add(parent, way.out), [0, note && way === DOWN ? 13 : 0]), to = add(child, way.in);
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
    drawEdge(way, accepted.has(i + 1) ? "accepted" : "", at(parent), at(i + 1), parent > 0));
  const nodes = round.text.map((text, row) => {
    const kind = row === 0 ? "node root" : accepted.has(row) ? "node accepted" : "node";
    return drawNode(kind, at(row), text, row === 0 ? "" : Math.exp(round.logprob[row]).toFixed(2));
  });
  return frame(measure(way, ...size), `Draft tree of ${round.text.length - 1} tokens`,
    ...edges, drawEdge(way, "accepted", at(last), bonus, last > 0),
    ...nodes, drawNode("node bonus", bonus, round.bonus, ""));
}

function frame([width, height], name, ...parts) {
  const box = { width, height, viewBox: `-1 -1 ${width} ${height}` };
  return makeSvg("svg", { ...box, role: "img", "aria-label": name }, ...parts);
}
