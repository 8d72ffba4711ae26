// Sends the request of an answer again, with drafts and without, and shows both speeds.
//
// Both runs are new ones, since a request that asks for draft trees runs one round a visit.

import { follow, make } from "./dom.js";
import { Stopwatch, stream } from "./server.js";

const NAMES = ["with drafts", "plain"];
const ROUNDING = "in bfloat16, tokens that tie to within rounding may swap";

// Throws as `stream` does.
export async function compare(answer, signal) {
  const runs = NAMES.map((name) => ({ name, text: "", watch: new Stopwatch() }));
  show(answer, runs);
  for (const run of runs) {
    for await (const event of stream(answer.request.path, makeBody(answer, run), signal)) {
      take(event, run);
      show(answer, runs);
    }
  }
  show(answer, runs, judge(answer, runs));
}

function makeBody(answer, { name }) {
  const { trace, drafter, ...body } = answer.request.body;
  // Of an answer that was stopped, only what there is of it.
  if (answer.finish === "stopped") body.max_tokens = answer.watch.tokens;
  return name === "plain" ? { ...body, drafter: "ar" } : body;
}

function take(event, run) {
  if (event.usage) run.watch.note(event.usage.completion_tokens);
  run.accepted = event.metrics?.speculative_decoding.num_accepted_tokens;
  for (const choice of event.choices) run.text += choice.delta?.content ?? choice.text ?? "";
}

function show(answer, runs, verdict = "") {
  const most = Math.max(...runs.map((run) => run.watch.speed ?? 0));
  const rows = runs.flatMap(({ name, watch }) => {
    const bar = make("span", { class: name === "plain" ? "speed" : "speed fast" });
    bar.style.width = `${most ? (100 * (watch.speed ?? 0)) / most : 0}%`;
    const value = watch.speed ? `${watch.speed.toFixed(1)} tokens/s` : "…";
    return [make("span", {}, name), make("span", { class: "scale" }, bar), make("span", {}, value)];
  });
  const words = make("p", { role: "status" }, verdict);
  follow(answer.element.parentNode, () => {
    answer.comparison.replaceChildren(make("div", { class: "rows" }, ...rows), words);
  });
}

// Says what came out.
function judge(answer, [drafted, plain]) {
  const said = [];
  const ratio = drafted.watch.speed / plain.watch.speed;
  // Without such tokens the runs differ by chance, or by the cost of drafts in vain.
  if (drafted.accepted === 0) said.push("No drafted token was accepted.");
  else if (!(ratio > 0 && ratio < Infinity)) said.push("The answer is too short to time.");
  else said.push(`With drafts it is ${ratio.toFixed(2)} times as fast as plain decoding.`);
  const texts = [answer.text.source, drafted.text, plain.text, drafted.text];
  const differences = texts.slice(1).map((text, i) => findDifference(texts[i], text));
  said.push(differences.find(Boolean) ?? "The texts are equal.");
  return said.join(" ");
}

// Says where a text is not how the other begins, null if it is.
function findDifference(one, other) {
  if (other.startsWith(one)) return null;
  let i = 0;
  while (one[i] === other[i]) i += 1;
  return `The texts differ after ${i} characters: ${ROUNDING}.`;
}
