// The panel of one round: its draft tree, and which tokens it gave.

import { countTokens } from "./curve.js";
import { find, make } from "./dom.js";
import { drawTree } from "./tree.js";

const HINT = "Click a token, or point at the curve, to see what its round drafted.";
const NONE = "There is no tree of the round that this token came from.";

let kept = null;   // { answer, number } of the round that was clicked
let shown = null;  // and of the one that is drawn

// Shows a round while the pointer is on it; null shows the clicked one again.
export function previewRound(answer, number) {
  draw(number === null ? kept : { answer, number });
}

// `anchor`, by default the first of the round's tokens, stays in sight where the panel takes room.
export function keepRound(answer, number, anchor) {
  kept = { answer, number };
  find("panel").hidden = false;
  draw(kept);
  const one = anchor ?? answer.element.querySelector(".chosen");
  one?.scrollIntoView({ block: "nearest" });
}

// Shows the round that a token came from, or says why there is none.
export function keepToken(answer, token) {
  const number = answer.rounds.findLastIndex((round) => round.before <= token);
  const round = answer.rounds[number];
  if (round && token < round.before + round.path.length) return keepRound(answer, number);
  forgetRounds();
  find("panel").hidden = false;
  find("round-text").textContent = NONE;
}

// Shows the panel where it has a column of its own.
export function offerRounds() {
  if (window.matchMedia("(min-width: 900px)").matches) find("panel").hidden = false;
}

export function forgetRounds() {
  kept = null;
  draw(null);
}

function draw(one) {
  if (shown && shown.answer !== one?.answer) shown.answer.markRound(null);
  shown = one;
  const round = one?.answer.rounds[one.number];
  find("round-title").textContent = round ? `Round ${one.number + 1}` : "Draft tree";
  find("round-text").replaceChildren(...(round ? describe(round) : [HINT]));
  find("tree").replaceChildren(...(round ? [drawTree(round, find("tree").clientWidth)] : []));
  find("previous").disabled = !round || one.number === 0;
  find("next").disabled = !round || one.number === one.answer.rounds.length - 1;
  if (round) one.answer.markRound(one.number);
}

function describe(round) {
  const drafted = round.text.length - 1, accepted = round.path.length - 1;
  if (!drafted) return ["No draft: one token, the model's own."];
  const tokens = make("strong", {}, countTokens(round.path.length));
  return [tokens, ` at once: ${accepted} of ${drafted} drafted, and one of the model's own.`];
}

function step(by) {
  if (shown) keepRound(shown.answer, shown.number + by);
}

find("previous").addEventListener("click", () => step(-1));
find("next").addEventListener("click", () => step(1));
find("close").addEventListener("click", () => {
  forgetRounds();
  find("panel").hidden = true;
});
draw(null);
