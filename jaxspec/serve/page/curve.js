// A curve of the tokens that each round gave. Pointing at a round shows it, a click keeps it.

import { make, makeSvg } from "./dom.js";

const POINTS = 60;  // the line is a mean over so many parts of the answer

export class Curve {
  // show(number): a round to show, null for the one that was kept. keep(number): to keep.
  constructor(show, keep) {
    this.counts = [];
    this.keep = keep;
    this.chosen = null;
    this.own = makeSvg("rect", { class: "own", x: 0, height: 1 });
    this.area = makeSvg("path", { class: "area" });
    this.line = makeSvg("path", { class: "mean" });
    this.mark = makeSvg("rect", { class: "mark", y: 0, width: 0 });
    this.svg = makeSvg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.svg.append(this.own, this.area, this.mark, this.line);
    this.top = make("span", { class: "top" });
    this.caption = make("figcaption");
    const role = { role: "slider", "aria-label": "Round of the answer", "aria-valuemin": 1 };
    this.plot = make("div", { class: "plot", tabindex: 0, ...role }, this.top, this.svg);
    this.element = make("figure", { class: "curve" }, this.plot, this.caption);
    this.element.hidden = true;
    this.listen(show);
  }

  listen(show) {
    const { plot } = this;
    const pick = (event) => this.keep(this.find(event));
    plot.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") show(this.find(event));
      else pick(event);
    });
    plot.addEventListener("pointerleave", () => show(null));
    plot.addEventListener("click", pick);
    plot.addEventListener("keydown", (event) => this.step(event));
  }

  // Returns the round under the pointer.
  find(event) {
    const { left, width } = this.svg.getBoundingClientRect();
    const number = Math.floor(((event.clientX - left) / width) * this.counts.length);
    return Math.max(0, Math.min(this.counts.length - 1, number));
  }

  step(event) {
    const last = this.counts.length - 1, now = this.chosen;
    const moves = {
      ArrowRight: now === null ? 0 : now + 1, ArrowUp: now === null ? 0 : now + 1,
      ArrowLeft: (now ?? 1) - 1, ArrowDown: (now ?? 1) - 1, Home: 0, End: last,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.keep(Math.max(0, Math.min(last, moves[event.key])));
  }

  // Draws the curve of so many tokens in each round.
  draw(counts) {
    this.counts = counts;
    this.element.hidden = counts.length < 2;
    if (this.element.hidden) return;
    const most = Math.max(4, ...counts);
    this.own.setAttribute("y", most - 1);
    this.own.setAttribute("width", counts.length);
    this.svg.setAttribute("viewBox", `0 0 ${counts.length} ${most}`);
    this.mark.setAttribute("height", most);
    this.area.setAttribute("d", drawArea(counts, most));
    this.line.setAttribute("d", drawMean(counts, most));
    this.top.textContent = most;
    this.plot.setAttribute("aria-valuemax", counts.length);
    this.write();
  }

  // Marks a round, null for none.
  choose(number) {
    this.chosen = number;
    // At least wide enough to be seen.
    const width = number === null ? 0 : Math.max(1, this.counts.length / 150);
    this.mark.setAttribute("x", (number ?? 0) + (1 - width) / 2);
    this.mark.setAttribute("width", width);
    this.write();
  }

  write() {
    const { chosen, counts } = this;
    const one = chosen === null ? "" : `round ${chosen + 1}: ${countTokens(counts[chosen])}`;
    this.plot.setAttribute("aria-valuenow", (chosen ?? 0) + 1);
    this.plot.setAttribute("aria-valuetext", one || "no round chosen");
    this.caption.replaceChildren(
      make("span", {}, `Tokens per round, ${counts.length} rounds`), make("strong", {}, one),
    );
  }
}

export const countTokens = (count) => (count === 1 ? "1 token" : `${count} tokens`);

// The accepted tokens of each round, on top of the model's own one.
function drawArea(counts, most) {
  const steps = counts.map((count, i) => `V${most - count}H${i + 1}`);
  return `M0 ${most - 1}${steps.join("")}V${most - 1}Z`;
}

// A line through the means of equal parts, at the parts' middles.
function drawMean(counts, most) {
  const size = Math.max(1, Math.ceil(counts.length / POINTS)), points = [];
  for (let i = 0; i < counts.length; i += size) {
    const part = counts.slice(i, i + size);
    const mean = part.reduce((sum, one) => sum + one, 0) / part.length;
    points.push(`${i + part.length / 2} ${(most - mean).toFixed(3)}`);
  }
  return `M${points.join("L")}`;
}
