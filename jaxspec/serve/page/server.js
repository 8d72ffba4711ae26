// Talks to the server: requests, streams of events, the time they take, errors in words.

import { find } from "./dom.js";

// What to do about an error, by its code; the message says what is wrong.
const ADVICE = {
  invalid_api_key: "Enter the key under Settings.",
  context_length_exceeded: "Start a new chat, or ask for fewer tokens under Settings.",
  warming_up: "It compiles its programs first: try again in a minute.",
  engine_dead: "Start it again.",
};
const UNREACHABLE = "The server cannot be reached. Is `jaxspec serve` still running?";
const CUT = "The connection ended before the answer did.";

function headers() {
  const key = find("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// Sends a request and returns the response.
// Throws an Error whose message is for the user, or an AbortError.
export async function send(path, body, signal) {
  const options = { headers: headers(), signal };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(UNREACHABLE);
  }
  if (!response.ok) throw new Error(await describe(response));
  return response;
}

async function describe(response) {
  let error;
  try {
    ({ error } = await response.json());
  } catch { /* a proxy's page */ }
  if (!error?.message) return `The server answered with status ${response.status}.`;
  const after = Number(response.headers.get("Retry-After"));
  const wait = after && error.code !== "warming_up" ? `Try again in ${after} s.` : "";
  return [error.message, ADVICE[error.code], wait].filter(Boolean).join(" ");
}

// Sends a request for a stream and yields its events; throws as `send` does.
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await read(reader);
    if (done) throw new Error(CUT);
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (!part.startsWith("data: ")) continue;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(CUT);
  }
}

// Times the tokens of an answer as they arrive.
export class Stopwatch {
  constructor() {
    this.began = performance.now();
    this.tokens = this.early = 0;
  }

  // Notes how many tokens there are.
  note(tokens) {
    if (tokens <= this.tokens) return;
    this.last = performance.now();
    if (!this.tokens) [this.first, this.early] = [this.last, tokens];
    this.tokens = tokens;
  }

  // Seconds until the first token; undefined before it.
  get wait() {
    return this.first && (this.first - this.began) / 1000;
  }

  // Tokens per second after the first ones; null if all came at once.
  get speed() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.tokens - this.early) / seconds : null;
  }
}
