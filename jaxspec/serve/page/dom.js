// Makes elements. Texts become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function makeButton(text, onClick, attributes = {}) {
  const button = make("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", onClick);
  return button;
}

// Changes what a scrolled list holds; if its end was in sight, it stays there.
export function follow(list, change) {
  const atEnd = list !== null && list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

export const find = (id) => document.getElementById(id);
