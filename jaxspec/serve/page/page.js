// The chat: sends messages, colours tokens by who made them, shows trees and counters.

import { drawTree } from "./tree.js";

const find = (id) => document.getElementById(id);
let messages = [];        // the conversation, as the server takes it
let answer = null;        // the answer whose rounds are shown
let running = null;       // aborts the request that runs
let hasTemplate = true;   // without one, the page continues texts

function headers() {
  const key = find("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function addMessage(kind, text) {
  const item = document.createElement("li");
  item.className = kind;
  item.textContent = text;
  find("messages").append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

// --- Requests.

function makeBody(prompt) {
  const seed = find("seed").value;
  return {
    ...(hasTemplate ? { messages } : { prompt }),
    stream: true,
    stream_options: { include_usage: true },
    trace: true,
    temperature: Number(find("temperature").value),
    max_tokens: Number(find("tokens").value),
    ...(seed === "" ? {} : { seed: Number(seed) }),
    ...(find("plain").checked ? { method: "ar" } : {}),
  };
}

// Yields the objects of a stream of server-sent events.
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

async function ask(prompt) {
  running = new AbortController();
  setBusy(true);
  const conversation = messages;
  conversation.push({ role: "user", content: prompt });
  addMessage("user", prompt);
  const item = addMessage("assistant", "");
  const mine = { item, text: "", pieces: [], rounds: [] };
  answer = mine;
  showRounds();
  try {
    const path = hasTemplate ? "v1/chat/completions" : "v1/completions";
    const response = await fetch(path, {
      method: "POST", headers: headers(), body: JSON.stringify(makeBody(prompt)), signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of readEvents(response)) take(event, mine);
  } catch (error) {
    if (error.name !== "AbortError") addMessage("error", error.message);
  }
  if (mine.text) conversation.push({ role: "assistant", content: mine.text });
  else conversation.pop();  // what was not answered does not count
  setBusy(false);
}

function take(event, mine) {
  if (event.error) throw new Error(event.error.message);
  if (event.metrics) addFigures(event, mine);
  for (const choice of event.choices) {
    mine.text += choice.delta?.content ?? choice.text ?? "";
    choice.trace?.rounds.forEach((round) => addRound(round, mine));
    choice.trace?.pieces.forEach((piece) => addPiece(piece, mine));
  }
  mine.item.scrollIntoView({ block: "end" });
}

function setBusy(busy) {
  find("send").disabled = busy;
  find("stop").disabled = !busy;
}

// --- What came.

function addPiece(piece, mine) {
  const span = document.createElement("span");
  span.className = piece.drafted ? "drafted" : "own";
  span.textContent = piece.text;
  span.addEventListener("click", () => {
    if (answer !== mine) { answer = mine; showRounds(); }
    const number = mine.rounds.findLastIndex((round) => round.before <= piece.token);
    if (number >= 0) showRound(number);
  });
  mine.pieces.push({ ...piece, span });
  mine.item.append(span);
}

function addRound(round, mine) {
  mine.rounds.push(round);
  if (answer === mine) addRoundButton(round, mine.rounds.length - 1);
}

function addRoundButton(round, number) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = round.path.length;
  button.title = `Round ${number + 1}: ${round.path.length} tokens`;
  button.addEventListener("click", () => showRound(number));
  find("rounds").append(button);
}

function showRounds() {
  find("rounds").replaceChildren();
  find("tree").replaceChildren();
  find("title").textContent = "Draft tree";
  answer?.rounds.forEach(addRoundButton);
}

function showRound(number) {
  const round = answer.rounds[number], end = round.before + round.path.length;
  find("title").textContent =
    `Draft tree of round ${number + 1}: ${round.path.length} tokens from ${round.text.length} rows`;
  find("tree").replaceChildren(drawTree(round));
  [...find("rounds").children].forEach((one, i) => one.classList.toggle("chosen", i === number));
  for (const { token, span } of answer.pieces) {
    span.classList.toggle("chosen", token >= round.before && token < end);
  }
}

function addFigures(event, mine) {
  const { num_drafts: rounds, mean_acceptance_length: length } = event.metrics.speculative_decoding;
  const figures = document.createElement("div");
  figures.className = "figures";
  const perRound = length === null ? "" : `, ${length.toFixed(2)} tokens per round`;
  figures.textContent = `${event.usage.completion_tokens} tokens in ${rounds} rounds${perRound}`;
  mine.item.append(figures);
}

// --- Counters.

let before = null;

function show(name, value) {
  document.querySelector(`[data-counter=${name}]`).textContent = value;
}

async function readCounters() {
  const found = {};
  for (const line of (await (await fetch("metrics")).text()).split("\n")) {
    const match = line.match(/^\w+:(\w+) (\S+)$/);
    if (match) found[match[1]] = Number(match[2]);
  }
  return { ...found, time: performance.now() / 1000 };
}

async function updateCounters() {
  if (document.hidden) return;
  const now = await readCounters().catch(() => null);
  if (now === null) return;
  const rounds = now.spec_decode_num_drafts_total, accepted = now.spec_decode_num_accepted_tokens_total;
  show("running", now.num_requests_running);
  show("waiting", now.num_requests_waiting);
  show("tokens", now.generation_tokens_total);
  show("length", rounds ? (1 + accepted / rounds).toFixed(2) : "–");
  if (before) {
    const made = now.generation_tokens_total - before.generation_tokens_total;
    show("speed", (made / (now.time - before.time)).toFixed(0));
  }
  before = now;
}

async function loadModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) {
    find("model").textContent = "needs a key: see Settings";
    return;
  }
  const model = (await response.json()).data[0];
  find("model").textContent = model.id;
  hasTemplate = model.chat;
  find("prompt").placeholder = hasTemplate ? "Message" : "Text to continue";
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = find("prompt").value;
  if (!prompt.trim() || find("send").disabled) return;
  find("prompt").value = "";
  ask(prompt);
});
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    find("form").requestSubmit();
  }
});
find("stop").addEventListener("click", () => running?.abort());
find("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  answer = null;
  find("messages").replaceChildren();
  showRounds();
});
find("key").addEventListener("change", loadModel);
loadModel();
updateCounters();
setInterval(updateCounters, 1000);
