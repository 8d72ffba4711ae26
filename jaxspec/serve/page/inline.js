// Inline Markdown: emphasis, code, links. What it returns are ranges of the text, so that the
// page can say of every character which token it came from.
//
// A text becomes a list of items, in order:
//   { start, end }            characters to show
//   { code: true, start, end } the same, set as code
//   { open: tag, href }       an element begins: em, strong, del, a
//   { close: true }           the innermost element ends
//
// Every step is linear in the text: a model may repeat any character a thousand times.

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ADDRESS = /<(?:https?:\/\/|mailto:)[^\s<>]*>/y;
// Without what follows an address in a sentence: of brackets, only pairs belong to it.
const BARE = /https?:\/\/(?:[^\s<>()[\]"`“”|\\*~]|\([^\s<>()[\]"`“”|\\*~]*\))+/y;
const LONGEST_TARGET = 2000;

// Returns an address that is safe to follow, null if it is none: scripts and data are not.
export function safeAddress(text) {
  return /^(https?:\/\/|mailto:)[^\s\x00-\x1f]+$/i.test(text) ? text : null;
}

export function parseInline(text) {
  const state = { text, items: [], runs: [], brackets: [], ticks: findTicks(text), plain: 0 };
  let i = 0;
  while (i < text.length) {
    const next = readSpecial(state, i);
    if (next === i) i += 1;  // an ordinary character: it stays in the plain range
    else i = state.plain = next;
  }
  flush(state, text.length);
  matchEmphasis(state.runs);
  return writeOut(state.items);
}

// Ends the plain range before i.
function flush(state, i) {
  if (i > state.plain) state.items.push({ start: state.plain, end: i });
  state.plain = i;
}

// Reads what begins at i, and returns where it ends: i if it is an ordinary character.
function readSpecial(state, i) {
  switch (state.text[i]) {
    case "\\": return readEscape(state, i);
    case "`": return readCode(state, i);
    case "*": case "_": case "~": return readRun(state, i);
    case "[": return openBracket(state, i, i + 1);
    case "!": return state.text[i + 1] === "[" ? openBracket(state, i, i + 2) : i;
    case "]": return closeBracket(state, i);
    case "<": return readAddress(state, i, ADDRESS, 1);
    case "h": return /\w/.test(state.text[i - 1] ?? "") ? i : readAddress(state, i, BARE, 0);
    default: return i;
  }
}

function readEscape(state, i) {
  const next = state.text[i + 1] ?? "";
  if (next !== "\n" && !ESCAPABLE.test(next)) return i;
  flush(state, i);
  state.items.push({ start: i + 1, end: i + 2 });
  return i + 2;
}

function readAddress(state, i, pattern, margin) {
  pattern.lastIndex = i;
  const whole = pattern.exec(state.text)?.[0].replace(/[.,;:!?'_]+$/, "") ?? "";
  const href = safeAddress(whole.slice(margin, whole.length - margin));
  if (!href) return i;
  flush(state, i);
  const end = i + whole.length;
  state.items.push({ open: "a", href }, { start: i + margin, end: end - margin }, { close: true });
  return end;
}

// --- Code.

// Returns {length: where runs of so many backticks begin}.
function findTicks(text) {
  const found = {};
  for (const match of text.matchAll(/`+/g)) (found[match[0].length] ??= []).push(match.index);
  for (const places of Object.values(found)) places.reverse();
  return found;
}

function readCode(state, i) {
  let begin = i;
  while (state.text[begin] === "`") begin += 1;
  const places = state.ticks[begin - i] ?? [];  // an escape may have shortened the run
  while (places.length && places.at(-1) < begin) places.pop();
  flush(state, i);
  if (!places.length) {  // nothing closes it: the backticks are text
    state.items.push({ start: i, end: begin });
    return begin;
  }
  const end = places.at(-1), inner = state.text.slice(begin, end);
  const padded = /^ .* $/s.test(inner) && inner.trim() !== "" ? 1 : 0;
  state.items.push({ code: true, start: begin + padded, end: end - padded });
  return end + begin - i;
}

// --- Links. An image is a link to it: the page loads nothing.

function openBracket(state, i, end) {
  flush(state, i);
  state.brackets.push({ item: state.items.length, runs: state.runs.length });
  state.items.push({ start: i, end });
  return end;
}

function closeBracket(state, i) {
  const bracket = state.brackets.pop();
  const target = bracket && readTarget(state.text, i + 1);
  if (!target) return i;
  flush(state, i);
  matchEmphasis(state.runs.splice(bracket.runs));  // emphasis does not cross a link's border
  for (const item of state.items.slice(bracket.item)) {
    if (item.open) Object.assign(item, { open: "span", href: undefined });  // a link holds no other
  }
  state.items[bracket.item] = { open: "a", href: target.href };
  state.items.push({ close: true });
  state.brackets = [];
  return target.end;
}

// Reads (address "title") at i: {href, end}, null if it is none or leads nowhere safe.
function readTarget(text, i) {
  if (text[i] !== "(") return null;
  let depth = 0, end = i;
  const last = Math.min(text.length, i + LONGEST_TARGET);
  for (; end < last; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "(") depth += 1;
    else if (text[end] === ")" && --depth === 0) break;
  }
  if (end >= last) return null;
  const inner = text.slice(i + 1, end).trim();
  const match = /^<?([^\s<>]+)>?(?:\s+(?:"[^"]*"|'[^']*'))?$/.exec(inner);
  const href = match && safeAddress(match[1].replace(/\\([()])/g, "$1"));
  return href ? { href, end: end + 1 } : null;
}

// --- Emphasis, by CommonMark's rules: runs of * and _ open, close, or both; ~~ strikes out.

function readRun(state, i) {
  const { text } = state, sign = text[i];
  let end = i;
  while (text[end] === sign) end += 1;
  flush(state, i);
  const run = { start: i, end, sign, length: end - i, opens: [], closes: [] };
  if (sign !== "~" || run.length === 2) {
    Object.assign(run, findSides(text[i - 1] ?? " ", text[end] ?? " ", sign));
    state.runs.push(run);
  }
  state.items.push(run);
  return end;
}

// Whether a run between two characters may open and close.
function findSides(before, after, sign) {
  const space = (one) => /\s/.test(one), mark = (one) => PUNCTUATION.test(one);
  const left = !space(after) && (!mark(after) || space(before) || mark(before));
  const right = !space(before) && (!mark(before) || space(after) || mark(after));
  if (sign !== "_") return { canOpen: left, canClose: right };
  return { canOpen: left && (!right || mark(before)), canClose: right && (!left || mark(after)) };
}

function matchEmphasis(runs) {
  const openers = [], searched = {};  // {kind of closer: openers below which none suits it}
  for (const run of runs) {
    while (run.canClose && run.end > run.start) {
      const kind = `${run.sign}${run.canOpen}${run.length % 3}`;
      const number = findOpener(openers, run, searched[kind] ?? 0);
      if (number < 0) { searched[kind] = openers.length; break; }
      join(openers[number], run);
      openers.length = openers[number].end > openers[number].start ? number + 1 : number;
      for (const key in searched) searched[key] = Math.min(searched[key], openers.length);
    }
    if (run.canOpen && run.end > run.start) openers.push(run);
  }
}

function findOpener(openers, closer, least) {
  for (let i = openers.length - 1; i >= least; i -= 1) {
    const { sign, length, canClose } = openers[i];
    const odd = (canClose || closer.canOpen) && (length + closer.length) % 3 === 0
      && (length % 3 !== 0 || closer.length % 3 !== 0);
    if (sign === closer.sign && (sign === "~" || !odd)) return i;
  }
  return -1;
}

// Takes the inner signs of both runs: two make strong text, one emphasised text.
function join(opener, closer) {
  const strong = opener.end - opener.start > 1 && closer.end - closer.start > 1;
  const tag = !strong ? "em" : opener.sign === "~" ? "del" : "strong";
  opener.end -= strong ? 2 : 1;
  closer.start += strong ? 2 : 1;
  opener.opens.unshift({ open: tag });
  closer.closes.push({ close: true });
}

function writeOut(items) {
  return items.flatMap((item) => {
    if (!item.sign) return [item];
    const rest = item.end > item.start ? [{ start: item.start, end: item.end }] : [];
    return [...item.closes, ...rest, ...item.opens];
  });
}
