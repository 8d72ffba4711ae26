// Markdown's blocks: paragraphs, headings, lists, quotes, code, tables, rules.
//
// A line is { text, at }: `at` is where it begins in the source. Lines of lists and quotes lose
// what marks them and keep their place, so every character is known to its token. A text that
// grows is parsed again: only the last blocks can change, see `text.js`.
//
// Departures from CommonMark, for answers of models: no indented code, no markup of HTML, no
// definitions of links; whatever is indented by two belongs to a list's item.

const FENCE = /^\s*(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const UNDERLINE = /^ {0,3}(={3,}|-{3,})[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])(?=\s|$)(\s{0,4})/;
const DEEPEST = 8;  // lists and quotes in each other

export function splitLines(text) {
  let at = 0;
  return text.split("\n").map((line) => {
    const one = { text: line, at };
    at += line.length + 1;
    return one;
  });
}

const isBlank = (line) => line.text.trim() === "";
const cut = (line, count) => ({ text: line.text.slice(count), at: line.at + count });

const trimStart = (line) => cut(line, line.text.length - line.text.trimStart().length);

// Removes the space at both ends. Only of a last line: its end would not be where it was.
function trim(line) {
  const begun = trimStart(line);
  return { text: begun.text.trimEnd(), at: begun.at };
}

// Returns blocks; `first` and `end` are numbers of lines.
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) { i += 1; continue; }
    const block = readBlock(lines, i, depth);
    blocks.push({ ...block, first: i });
    i = block.end;
  }
  return blocks;
}

function readBlock(lines, i, depth) {
  const { text } = lines[i];
  if (isFence(text)) return readCode(lines, i);
  if (HEADING.test(text)) return readHeading(lines, i);
  if (RULE.test(text)) return { kind: "rule", end: i + 1 };
  if (depth < DEEPEST && QUOTE.test(text)) return readQuote(lines, i, depth);
  if (depth < DEEPEST && ITEM.test(text)) return readList(lines, i, depth);
  if (startsTable(lines, i)) return readTable(lines, i);
  return readParagraph(lines, i, depth);
}

// --- Code.

function isFence(text) {
  const match = FENCE.exec(text);
  return match !== null && !(match[1][0] === "`" && match[2].includes("`"));
}

function closesFence(text, mark) {
  const line = text.trim();
  return line.length >= mark.length && line === mark[0].repeat(line.length);
}

// A fence that nothing closes, as while the answer grows, is code to the end.
function readCode(lines, i) {
  const [, mark, info] = FENCE.exec(lines[i].text);
  const indent = lines[i].text.search(/\S/);
  let end = i + 1;
  while (end < lines.length && !closesFence(lines[end].text, mark)) end += 1;
  const inner = lines.slice(i + 1, end).map((line) => dedent(line, indent));
  const language = info.trim().split(/\s/)[0];
  return { kind: "code", lines: inner, language, end: Math.min(end + 1, lines.length) };
}

// Removes at most so many columns of space.
function dedent(line, columns) {
  let count = 0;
  while (count < columns && /[ \t]/.test(line.text[count] ?? "")) count += 1;
  return cut(line, count);
}

// --- Headings and paragraphs.

function readHeading(lines, i) {
  const [whole, marks] = HEADING.exec(lines[i].text);
  const line = trim(cut(lines[i], whole.length));
  const last = line.text.length - /#*$/.exec(line.text)[0].length;
  const closed = last === 0 || /\s/.test(line.text[last - 1]);
  const text = closed ? line.text.slice(0, last).trimEnd() : line.text;
  return { kind: "heading", level: marks.length, lines: [{ ...line, text }], end: i + 1 };
}

function readParagraph(lines, i, depth) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    const under = UNDERLINE.exec(lines[end].text);
    if (under) {
      const level = under[1][0] === "=" ? 1 : 2;
      return { kind: "heading", level, lines: lines.slice(i, end).map(trimStart), end: end + 1 };
    }
    if (interrupts(lines, end, depth)) break;
    end += 1;
  }
  return { kind: "paragraph", lines: [trimStart(lines[i]), ...lines.slice(i + 1, end)], end };
}

// Whether a line ends the paragraph before it: "3. of May" does not.
function interrupts(lines, i, depth) {
  const { text } = lines[i];
  if (isFence(text) || HEADING.test(text) || RULE.test(text) || startsTable(lines, i)) return true;
  if (depth >= DEEPEST) return false;
  const item = ITEM.exec(text);
  const begins = item && (item[3] === undefined || Number(item[3]) === 1);
  return QUOTE.test(text) || Boolean(begins && text.slice(item[0].length).trim());
}

// --- Quotes and lists.

function readQuote(lines, i, depth) {
  let end = i;
  const inner = [];
  for (; end < lines.length && QUOTE.test(lines[end].text); end += 1) {
    inner.push(cut(lines[end], QUOTE.exec(lines[end].text)[0].length));
  }
  return { kind: "quote", blocks: parseBlocks(inner, depth + 1), end };
}

function readList(lines, i, depth) {
  const kind = (match) => match[2].at(-1);  // the bullet, or what follows the number
  const first = ITEM.exec(lines[i].text);
  const items = [];
  let end = i, loose = false;
  for (let next = i; next < lines.length;) {
    const match = ITEM.exec(lines[next].text);
    if (!match || kind(match) !== kind(first) || RULE.test(lines[next].text)) break;
    if (next > end) loose = true;  // a blank line between two items
    const item = readItem(lines, next, match, depth);
    items.push(item.blocks);
    loose ||= item.loose;
    end = next = item.end;
    while (next < lines.length && isBlank(lines[next])) next += 1;
  }
  const start = first[3] === undefined ? null : Number(first[3]);
  return { kind: "list", start, items, loose, end };
}

// Reads an item: its own line, what is indented below it, and lines that go on with its paragraph.
function readItem(lines, i, match, depth) {
  const indent = match[1].length, inner = [cut(lines[i], match[0].length)];
  let end = i + 1, fence = openedBy(inner[0], null), loose = false;
  for (let next = end; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) { inner.push(line); continue; }
    const inside = line.text.search(/\S/) >= indent + 2 || fence !== null;
    const after = next > end;  // behind a blank line
    if (!inside && (after || ITEM.test(line.text) || interrupts(lines, next, depth))) break;
    if (after && fence === null) loose = true;
    inner.push(dedent(line, match[0].length));
    fence = openedBy(inner.at(-1), fence);
    end = next + 1;
  }
  inner.length = end - i;  // without the blank lines behind it
  return { blocks: parseBlocks(inner, depth + 1), loose, end };
}

// Returns the fence that is open behind a line, null for none.
function openedBy(line, fence) {
  if (fence !== null) return closesFence(line.text, fence) ? null : fence;
  return isFence(line.text) ? FENCE.exec(line.text)[1] : null;
}

// --- Tables.

function startsTable(lines, i) {
  if (i + 1 >= lines.length || !lines[i].text.includes("|")) return false;
  const under = lines[i + 1].text;
  if (!/^[\s|:-]+$/.test(under) || !under.includes("|") || !under.includes("-")) return false;
  const marks = splitRow(lines[i + 1]);
  if (splitRow(lines[i]).length !== marks.length) return false;
  return marks.every((one) => /^:?-+:?$/.test(one.text));
}

function readTable(lines, i) {
  const align = splitRow(lines[i + 1]).map(({ text }) => {
    if (text.endsWith(":")) return text.startsWith(":") ? "center" : "end";
    return "start";
  });
  let end = i + 2;
  while (end < lines.length && lines[end].text.includes("|")) end += 1;
  const rows = [lines[i], ...lines.slice(i + 2, end)].map(splitRow);
  return { kind: "table", align, rows: rows.map((row) => row.slice(0, align.length)), end };
}

// Cuts a line at its bars, but not at \|.
function splitRow(line) {
  const row = trim(line), cells = [];
  let begin = row.text.startsWith("|") ? 1 : 0;
  for (let i = begin; i <= row.text.length; i += 1) {
    if (row.text[i] === "\\" && i + 1 < row.text.length) { i += 1; continue; }
    if (row.text[i] !== "|" && i < row.text.length) continue;
    if (i > begin || i < row.text.length) {
      cells.push(trim({ text: row.text.slice(begin, i), at: row.at + begin }));
    }
    begin = i + 1;
  }
  return cells;
}
