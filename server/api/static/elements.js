// Elements of the page, made by script.

/** An element with properties, such as `textContent`, or attributes, such as `aria-hidden`, and what is in it. */
export function make(tag, properties = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...inside);
  return made;
}
