// One answer: its text, and below it the figures, the curve and the comparison.

import { Curve } from "./curve.js";
import { follow, make, makeButton } from "./dom.js";
import { keepRound, keepToken, offerRounds, previewRound } from "./rounds.js";
import { Stopwatch } from "./server.js";
import { AnswerText, copyText } from "./text.js";

export class Answer {
  // request: { path, body }. compare(answer): called by the button.
  constructor(request, markdown, compare) {
    this.request = request;
    this.rounds = [];
    this.finish = null;    // why it ended, as the server says, or "stopped"
    this.watch = new Stopwatch();
    const body = make("div", { class: "text" });
    this.text = new AnswerText(body, markdown);
    body.addEventListener("click", (event) => this.click(event));
    const title = make("h2", { class: "unseen" }, "Answer");
    this.element = make("li", { class: "assistant", "aria-busy": "true" });
    this.element.append(title, body, this.makeFoot(compare));
  }

  makeFoot(compare) {
    const show = (number) => previewRound(this, number);
    const keep = (number) => keepRound(this, number, this.curve.element);
    this.curve = new Curve(show, keep);
    this.figures = make("ul", { class: "figures" });
    this.comparison = make("div", { class: "comparison" });
    const copy = makeButton("Copy", () => copyText(this.text.source, copy), { class: "small" });
    const other = makeButton("Compare with plain decoding", () => compare(this));
    other.className = "small compare";
    this.buttons = make("div", { class: "buttons" }, copy, other);
    this.buttons.hidden = true;
    const parts = [this.figures, this.curve.element, this.buttons, this.comparison];
    return make("footer", { "aria-live": "off" }, ...parts);
  }

  click(event) {
    const token = event.target.closest("[data-token]")?.dataset.token;
    const selecting = !window.getSelection().isCollapsed || event.target.closest("a");
    if (token !== undefined && !selecting) keepToken(this, Number(token));
  }

  // Takes an event of the stream.
  take(event) {
    if (event.usage) this.watch.note(event.usage.completion_tokens);
    for (const choice of event.choices) {
      const text = choice.delta?.content ?? choice.text ?? "";
      const token = this.text.pieces.length;
      const pieces = choice.trace?.pieces ?? (text ? [{ text, drafted: false, token }] : []);
      pieces.forEach((piece) => this.text.add(piece));
      if (choice.trace?.rounds.length) {
        if (!this.rounds.length) offerRounds();
        this.rounds.push(...choice.trace.rounds);
      }
      this.finish = choice.finish_reason ?? this.finish;
    }
    this.schedule();
  }

  // Draws at most once a frame: the processor may be busy with the model.
  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    follow(this.element.parentNode, () => {
      this.text.draw();
      this.curve.draw(this.rounds.map((round) => round.path.length));
      this.figures.replaceChildren(...this.describe().map((one) => make("li", {}, one)));
      this.buttons.hidden = !this.ended || !this.watch.tokens;
    });
  }

  // Ends it, stopped by the user or not.
  end(stopped) {
    if (stopped) this.finish = "stopped";
    this.ended = true;
    this.draw();
    this.element.setAttribute("aria-busy", "false");
  }

  // Marks a round in the text and the curve, null for none.
  markRound(number) {
    const round = this.rounds[number];
    this.text.choose(round?.before ?? 0, round ? round.before + round.path.length : 0);
    this.curve.choose(number);
  }

  // Returns figures in words.
  describe() {
    const { tokens, speed, wait } = this.watch, { rounds, finish } = this;
    const made = rounds.reduce((sum, round) => sum + round.path.length, 0);
    const said = [];
    if (tokens) said.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
    if (speed) said.push(`${speed.toFixed(1)} tokens/s`);
    if (rounds.length) said.push(`${(made / rounds.length).toFixed(2)} tokens per round`);
    if (this.describeRest()) said.push(this.describeRest());
    if (wait) said.push(`first token after ${wait.toFixed(2)} s`);
    if (finish === "stopped") said.push("stopped");
    if (finish === "length") said.push(`cut at ${tokens} tokens: see Settings`);
    return said;
  }

  // Says how many rounds had no draft: the server may find plain ones faster.
  describeRest() {
    const count = this.rounds.length, { drafter } = this.request.body;
    const drafted = this.rounds.filter((round) => round.text.length > 1).length;
    if (drafted === count) return "";
    if (drafted) return `${drafted} of ${count} rounds drafted`;
    return drafter === "ar" ? "without a drafter" : "the server chose plain rounds";
  }
}
