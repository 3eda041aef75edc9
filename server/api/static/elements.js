// Elements of the page.

export const find = (id) => document.getElementById(id);

/**
 * An element of HTML, as `make("p.hint", "text", { title: "more" })`.
 *
 * @param selector its tag and classes.
 * @param inside text or an element, or a list of such.
 * @param attributes its attributes, of which `style` is an object.
 */
export function make(selector, inside = [], attributes = {}) {
  return build(document.body.namespaceURI, selector, inside, attributes);
}

/** An element of SVG; most have attributes, and few have anything inside. */
export function draw(selector, attributes, inside = []) {
  return build(document.querySelector("svg").namespaceURI, selector, inside, attributes);
}

function build(namespace, selector, inside, { style, ...attributes }) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElementNS(namespace, tag);
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  Object.assign(element.style, style);
  element.append(...[inside].flat());
  return element;
}

/** A row of a table. Its heading and its cells are what `make` puts inside. */
export function makeRow(heading, cells) {
  return make("tr", [make("th", heading, { scope: "row" }), ...cells.map((cell) => make("td", cell))]);
}

/** Set a text that is read out when it changes, and only then. */
export function say(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}
