// Elements of the page.

export const find = (id) => document.getElementById(id);

/** An element of HTML with attributes, of which `style` is an object, and what is in it. */
export function make(tag, attributes = {}, ...inside) {
  return fill(document.createElement(tag), attributes, inside);
}

/** An element of SVG. */
export function draw(tag, attributes, ...inside) {
  return fill(document.createElementNS(document.querySelector("svg").namespaceURI, tag), attributes, inside);
}

function fill(element, { style = {}, ...attributes }, inside) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  Object.assign(element.style, style);
  element.append(...inside);
  return element;
}

/** A row of a table. Its heading and its cells are text, or lists of text and elements. */
export function makeRow(heading, cells) {
  const tds = cells.map((cell) => make("td", {}, ...[cell].flat()));
  return make("tr", {}, make("th", { scope: "row" }, ...[heading].flat()), ...tds);
}
