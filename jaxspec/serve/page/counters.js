// The server's state and its counters, in the header.

import { find } from "./dom.js";

let before = null;
let ready = false;

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

// Returns what keeps the server from answering, "" if nothing does.
async function readState() {
  if (ready) return "";
  const response = await fetch("ready");
  ready = response.ok;
  if (ready) return "";
  const { status } = await response.json();
  return status === "warming_up" ? "The model is warming up …" : "The server is shutting down.";
}

async function update() {
  if (document.hidden) return;
  try {
    find("state").textContent = await readState();
    showCounters(await readCounters());
  } catch {
    ready = false;
    find("state").textContent = "The server cannot be reached.";
  }
}

function showCounters(now) {
  // Each round, drafted or plain, gives one token of the model's own.
  const tokens = now.generation_tokens_total;
  const rounds = tokens - now.spec_decode_num_accepted_tokens_total;
  show("running", now.num_requests_running);
  show("waiting", now.num_requests_waiting);
  show("tokens", tokens);
  show("length", rounds > 0 ? (tokens / rounds).toFixed(2) : "–");
  if (before) {
    const made = tokens - before.generation_tokens_total;
    show("speed", (made / (now.time - before.time)).toFixed(0));
  }
  before = now;
}

// Updates them every second.
export function watchCounters() {
  update();
  setInterval(update, 1000);
}
