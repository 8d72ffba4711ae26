// The text of an answer: Markdown as elements, every character in a span of its token.

import { parseBlocks, splitLines } from "./blocks.js";
import { make, makeButton } from "./dom.js";
import { parseInline } from "./inline.js";

const PLAIN = (lines) => [{ kind: "plain", lines, first: 0, end: lines.length }];

export class AnswerText {
  // element: where it stands. A piece is { text, drafted, token }.
  constructor(element, markdown = true) {
    this.element = element;
    this.markdown = markdown;
    this.source = "";
    this.pieces = [];       // each with `at`, where it begins in the source
    this.blocks = [];       // those that are drawn, in the order of the element's children
    this.chosen = [0, 0];   // tokens from, up to
  }

  add(piece) {
    this.pieces.push({ ...piece, at: this.source.length });
    this.source += piece.text;
  }

  setMarkdown(on) {
    this.markdown = on;
    this.blocks = [];
    this.draw();
  }

  // Draws what is new. A block without the source's last line, which is the one that grows, stays
  // what it was if it has the same lines.
  draw() {
    const lines = splitLines(this.source);
    const blocks = this.markdown ? parseBlocks(lines) : PLAIN(lines);
    const last = this.lastLine ?? 0;
    const same = (a, b) => a && b && a.kind === b.kind && a.first === b.first && a.end === b.end;
    let kept = 0;
    while (same(this.blocks[kept], blocks[kept]) && blocks[kept].end <= last) kept += 1;
    [...this.element.children].slice(kept).forEach((one) => one.remove());
    blocks.slice(kept).forEach((block) => this.element.append(this.drawBlock(block)));
    this.blocks = blocks;
    this.lastLine = lines.length - 1;
  }

  // Marks the tokens from `begin` up to `end`.
  choose(begin, end) {
    this.chosen = [begin, end];
    for (const span of this.element.querySelectorAll("[data-token]")) {
      span.classList.toggle("chosen", this.isChosen(Number(span.dataset.token)));
    }
  }

  isChosen(token) {
    return token >= this.chosen[0] && token < this.chosen[1];
  }

  // --- Blocks.

  drawBlock(block) {
    switch (block.kind) {
      case "code": return this.drawCode(block);
      case "heading": return this.drawLines(make(`h${Math.min(6, block.level + 2)}`), block.lines);
      case "rule": return make("hr");
      case "quote": return this.drawBlocks(make("blockquote"), block.blocks);
      case "list": return this.drawList(block);
      case "table": return this.drawTable(block);
      case "plain": return this.drawPlain(block);
      default: return this.drawLines(make("p"), block.lines);
    }
  }

  drawBlocks(element, blocks) {
    element.append(...blocks.map((block) => this.drawBlock(block)));
    return element;
  }

  drawList({ start, items, loose }) {
    const list = start === null ? make("ul") : make("ol", { start });
    list.classList.toggle("loose", loose);
    list.append(...items.map((blocks) => this.drawBlocks(make("li"), blocks)));
    return list;
  }

  drawTable({ align, rows }) {
    const table = make("table");
    rows.forEach((row, number) => {
      const cells = row.map((cell, column) => {
        const kind = make(number === 0 ? "th" : "td", { class: align[column] });
        return this.drawLines(kind, [cell]);
      });
      table.append(make("tr", {}, ...cells));
    });
    return make("div", { class: "wide", tabindex: 0 }, table);
  }

  drawCode({ lines, language }) {
    const code = make("code");
    this.drawRange(code, ...joinLines(lines));
    const copy = makeButton("Copy", () => copyText(code.textContent, copy), { class: "small" });
    const bar = make("div", { class: "bar" }, make("span", {}, language || "code"), copy);
    return make("div", { class: "code" }, bar, make("pre", { tabindex: 0 }, code));
  }

  drawPlain({ lines }) {
    const element = make("div", { class: "plain" });
    this.drawRange(element, ...joinLines(lines));
    return element;
  }

  // --- Characters.

  drawLines(element, lines) {
    const [text, places] = joinLines(lines);
    let inner = element;
    for (const item of parseInline(text)) {
      if (item.open) inner = inner.appendChild(makeInline(item));
      else if (item.close) inner = inner.parentNode;
      else if (item.code) this.drawRange(inner.appendChild(make("code")), text, places, item);
      else this.drawRange(inner, text, places, item);
    }
    return element;
  }

  // Adds characters, cut where one token's text ends and the next one's begins.
  drawRange(element, text, places, range = { start: 0, end: text.length }) {
    const { start, end } = range;
    let number = start < end ? this.findPiece(places[start]) : 0;
    for (let i = start; i < end;) {
      const next = () => this.pieces[number + 1]?.at ?? Infinity;
      while (next() <= places[i]) number += 1;
      let until = i + 1;
      while (until < end && places[until] < next()) until += 1;
      element.append(this.makeSpan(this.pieces[number], text.slice(i, until)));
      i = until;
    }
  }

  makeSpan(piece, text) {
    const span = make("span", { class: piece.drafted ? "drafted" : "own" }, text);
    span.dataset.token = piece.token;
    if (this.isChosen(piece.token)) span.classList.add("chosen");
    return span;
  }

  // Returns the number of the piece that holds a place of the source.
  findPiece(place) {
    let low = 0, high = this.pieces.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].at <= place) low = middle;
      else high = middle;
    }
    return low;
  }
}

// Joins lines: [text, the place in the source of each character].
function joinLines(lines) {
  const places = [];
  for (const line of lines) {
    for (let i = 0; i <= line.text.length; i += 1) places.push(line.at + i);  // and the line's end
  }
  return [lines.map((line) => line.text).join("\n"), places];
}

function makeInline({ open, href }) {
  if (open !== "a") return make(open);
  return make("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" });
}

// Copies a text; without the clipboard, which is for secure pages alone, by a selection.
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
