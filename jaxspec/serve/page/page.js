// The chat: the conversation, the form, and one request at a time.

import { Answer } from "./answer.js";
import { compare } from "./compare.js";
import { watchCounters } from "./counters.js";
import { find, make } from "./dom.js";
import { forgetRounds } from "./rounds.js";
import { send, stream } from "./server.js";
import { fillWelcome } from "./welcome.js";

let messages = [];        // the conversation, as the server takes it
let answers = [];
let running = null;       // aborts the request that runs
let hasTemplate = true;   // without one, the page continues texts

// --- Requests.

function makeRequest(prompt) {
  const seed = find("seed").value;
  const body = {
    ...(hasTemplate ? { messages: [...messages] } : { prompt }),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    trace: true,
    temperature: Number(find("temperature").value),
    max_tokens: Number(find("tokens").value),
    // Always one, so that a comparison samples the same text.
    seed: seed === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : Number(seed),
    ...(find("plain").checked ? { drafter: "ar" } : {}),
  };
  return { path: hasTemplate ? "v1/chat/completions" : "v1/completions", body };
}

// Runs work that the Stop button ends; returns what went wrong, null if nothing did.
async function occupy(work) {
  const mine = running = new AbortController();
  setBusy(true);
  try {
    await work(mine.signal);
    return null;
  } catch (error) {
    return error;
  } finally {
    if (running === mine) setBusy(false);
  }
}

async function ask(prompt) {
  const conversation = messages;
  conversation.push({ role: "user", content: prompt });
  const question = addMessage("user", prompt);
  const answer = new Answer(makeRequest(prompt), find("markdown").checked, runComparison);
  answers.push(answer);
  append(answer.element);
  const error = await occupy(async (signal) => {
    const { path, body } = answer.request;
    for await (const event of stream(path, body, signal)) answer.take(event);
  });
  answer.end(error?.name === "AbortError");
  const text = answer.text.source;
  if (text) conversation.push({ role: "assistant", content: text });
  else conversation.pop();  // what was not answered does not count
  if (error && error.name !== "AbortError") fail(error, text ? null : { question, answer, prompt });
  else if (!error && find("compare").checked) runComparison(answer);
}

// Shows an error; what it left without any answer may be sent again.
function fail(error, unanswered) {
  if (unanswered) {
    unanswered.answer.element.remove();
    unanswered.question.classList.add("unanswered");
    find("prompt").value ||= unanswered.prompt;
  }
  addMessage("error", error.message).setAttribute("role", "alert");
}

async function runComparison(answer) {
  if (isBusy()) return;
  const error = await occupy((signal) => compare(answer, signal));
  if (error) {
    const text = error.name === "AbortError" ? "The comparison was stopped." : error.message;
    answer.comparison.replaceChildren(make("p", { class: "error" }, text));
  }
}

const isBusy = () => document.body.classList.contains("busy");

function setBusy(busy) {
  document.body.classList.toggle("busy", busy);
  find("send").hidden = busy;
  find("stop").hidden = !busy;
  for (const button of document.querySelectorAll("button.compare")) button.disabled = busy;
  find("status").textContent = busy ? "Answering" : "Done";
}

// --- The conversation.

function addMessage(kind, text) {
  const item = make("li", { class: kind });
  if (kind === "user") item.append(make("h2", { class: "unseen" }, "You"));
  item.append(make("div", { class: "plain" }, text));
  append(item);
  return item;
}

function append(item) {
  find("welcome").hidden = true;
  find("legend").hidden = false;
  find("messages").append(item);
  find("messages").scrollTop = find("messages").scrollHeight;
}

function startAgain() {
  running?.abort();
  messages = [];
  answers = [];
  forgetRounds();
  find("panel").hidden = find("legend").hidden = true;
  find("welcome").hidden = false;
  find("messages").replaceChildren(find("welcome"));
  find("prompt").focus();
}

// --- The form.

async function loadModel() {
  try {
    const response = await send("v1/models", null);
    useModel((await response.json()).data[0]);
  } catch (error) {
    find("model").textContent = "";
    find("what").textContent = error.message;
  }
}

function useModel(model) {
  find("model").textContent = model.id;
  hasTemplate = find("markdown").checked = model.chat;
  find("prompt").placeholder = model.chat ? "Message" : "Text to continue";
  find("tokens").max = model.max_model_len;
  find("tokens").value = Math.min(find("tokens").value, model.max_model_len >> 1);
  fillWelcome(model, (text) => {
    find("prompt").value = text;
    find("form").requestSubmit();
  });
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = find("prompt").value;
  if (!prompt.trim() || isBusy()) return;
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
find("new").addEventListener("click", startAgain);
find("markdown").addEventListener("change", () => {
  answers.forEach((answer) => answer.text.setMarkdown(find("markdown").checked));
});
find("key").addEventListener("change", loadModel);
loadModel();
watchCounters();
