// Elements of the page, made by script.

/** An element with properties, such as `textContent` or `className`, and what is in it. */
export function make(tag, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...inside);
  return made;
}
