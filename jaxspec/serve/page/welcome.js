// What an empty page shows: what it is, and what to try.

import { find, makeButton } from "./dom.js";

const QUESTIONS = [
  "Write a Python function that returns the n-th Fibonacci number.",
  "Explain in three short points how a rainbow forms.",
  "Count from 1 to 40, separated by commas.",
  "What is the capital of France, and what is it known for?",
];
const SUMS = [  // the form of what `mini` was trained on
  "Tom has 12 apples and buys 3 bags of 5 apples each. How many apples does he have?",
  "A baker sells 20 loaves a day at 3 dollars each. How much does she earn in a week?",
  "Anna reads 15 pages every day. How many pages does she read in 8 days?",
];
const BEGINNINGS = [
  "def fibonacci(n):",
  "The capital of France is",
  "Once upon a time there was a",
  "import os\nimport sys\n\n\ndef main():",
];
const CHAT = "Ask something, or try one of these:";
const CONTINUE = "This model has no chat template: it continues texts. Try one of these:";

// Models whose answers one should not believe, by their names.
const MINI = /(^|\/)mini$/i;
const SMALL = [
  [MINI, "mini is a tiny model, of 8 million parameters. It shows how drafting works; "
    + "its answers are mostly nonsense."],
  [/smollm2-135m/i, "SmolLM2-135M is a very small model. Its answers read well, "
    + "and are often wrong, sums above all."],
];

// model: as /v1/models describes it. use(text): called with the chosen example.
export function fillWelcome(model, use) {
  const questions = MINI.test(model.id) ? [...SUMS, BEGINNINGS[0]] : QUESTIONS;
  const examples = model.chat ? questions : BEGINNINGS;
  find("what").textContent = model.chat ? CHAT : CONTINUE;
  find("examples").replaceChildren(...examples.map((text) => makeButton(text, () => use(text))));
  find("warning").textContent = SMALL.find(([pattern]) => pattern.test(model.id))?.[1] ?? "";
}
