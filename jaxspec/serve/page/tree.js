// Draws the draft tree of a round: depth to the right, one line per leaf.

const WIDTH = 96, HEIGHT = 34, BOX = 80, TALL = 20, MOST = 9;

function make(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

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
  const place = (row) => {
    const order = [...children[row]].sort((a, b) => accepted.has(b) - accepted.has(a) || a - b);
    lines[row] = next;
    if (order.length === 0) next += 1;
    order.forEach(place);
  };
  place(0);
  return lines;
}

function drawNode(svg, kind, x, y, text, note) {
  const group = make("g", { class: kind }, svg);
  make("rect", { x, y, width: BOX, height: TALL, rx: 4 }, group);
  make("text", { x: x + BOX / 2, y: y + 14, "text-anchor": "middle" }, group, label(text));
  make("title", {}, group, `${JSON.stringify(text)} ${note}`);
  if (note) make("text", { x: x + BOX / 2, y: y + 30, class: "probability", "text-anchor": "middle" }, group, note);
}

function drawEdge(svg, kind, fromX, fromY, toX, toY) {
  const middle = (fromX + BOX + toX) / 2, begin = fromY + TALL / 2, end = toY + TALL / 2;
  make("path", { class: kind, d: `M${fromX + BOX} ${begin}C${middle} ${begin} ${middle} ${end} ${toX} ${end}` }, svg);
}

// Returns an SVG element.
export function drawTree(round) {
  const lines = layOut(round), accepted = new Set(round.path);
  const last = round.path.at(-1), bonusDepth = round.depth[last] + 1;
  // The bonus has a line of its own where the tree goes on behind the last accepted row.
  const taken = round.parent.includes(last);
  const bonusLine = taken ? Math.max(...lines) + 1 : lines[last];
  const depth = Math.max(...round.depth, bonusDepth);
  const width = (depth + 1) * WIDTH, height = (Math.max(...lines, bonusLine) + 1) * HEIGHT;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, role: "img" })) svg.setAttribute(key, value);
  const x = (row) => round.depth[row] * WIDTH, y = (row) => lines[row] * HEIGHT;
  round.parent.forEach((parent, row) => {
    if (row > 0) drawEdge(svg, accepted.has(row) ? "accepted" : "", x(parent), y(parent), x(row), y(row));
  });
  drawEdge(svg, "accepted", x(last), y(last), bonusDepth * WIDTH, bonusLine * HEIGHT);
  round.text.forEach((text, row) => {
    const note = row === 0 ? "" : Math.exp(round.logprob[row]).toFixed(2);
    drawNode(svg, accepted.has(row) ? "node accepted" : "node", x(row), y(row), text, note);
  });
  drawNode(svg, "node bonus", bonusDepth * WIDTH, bonusLine * HEIGHT, round.bonus, "");
  return svg;
}
