// The front of a model that a search made: every model that was measured, in a picture and a table;
// and what the search says of the model that it chose.

import { make } from "./elements.js";
import { inBytes, inMs, inTimes } from "./units.js";

const HEIGHT_PX = 260;
const AROUND = { left: 44, right: 14, top: 52, bottom: 42 };
const NAME_PX = 118; // of the chosen model's name
const GAP = 1 / 7; // of the axis, between ticks of KL
const KL_TICKS = [-5, -4, -3, -2, -1, 0, 1].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));

let watching = null;

/** What the search measured of the model itself, as an element; null where no search made it. */
export function claimOf({ label, said: { search } }) {
  if (!search) return null;
  const { ms, agreement } = chosenOf(search);
  const peer = search.models.find(({ name, computed_by }) => name === "dense" && /^(?!milkweed).*bfloat16$/.test(computed_by));
  const beside = peer ? ` (${inTimes(peer.ms / ms)} times as in ${peer.computed_by})` : "";
  const speed = `${inTimes(search.dense.ms / ms)} times as fast as its dense model in ${search.dense.computed_by}${beside}`;
  const [same, low, high] = agreement.map((share) => share.toFixed(1));
  const said = `${label}: ${speed}, ${same} % [${low}, ${high}] the same answers`;
  const where = search.measured_on ? `, on ${search.measured_on}` : "";
  const how = `Measured when it was made, with ${search.images} photographs${where}: ${inMs(ms)} instead of ${inMs(search.dense.ms)} an image. `;
  const more = make("a", { href: "#front" }, "All that was measured");
  return make("div", {}, make("p", { className: "lead" }, said), make("p", { className: "hint" }, how, more));
}

/** Show the front of the first of these models that a search made; hide the section where there is none. */
export function showFront(section, models) {
  const model = models.find(({ said }) => said.search);
  const shown = model ? `${model.label} ${model.said.version}` : "";
  section.hidden = !model;
  if (section.dataset.of === shown) return;
  section.dataset.of = shown;
  watching?.disconnect();
  if (!model) return;
  const { search } = model.said;
  section.querySelector(".count").textContent = `${model.label}, from ${search.models.length} models and ${search.images} photographs`;
  section.querySelector("tbody").replaceChildren(...[denseRow(search), ...search.models.map((each) => row(each, search))]);
  watch(section.querySelector("svg"), search);
}

function chosenOf(search) {
  return search.models.find(({ chosen }) => chosen);
}

/** Draw, and again when the picture's width changes, so that its words keep their size. */
function watch(svg, search) {
  const chosen = chosenOf(search);
  svg.setAttribute("aria-label", `KL to the dense model against milliseconds an image. Chosen: ${chosen.name}, ${inMs(chosen.ms)}; dense: ${inMs(search.dense.ms)}.`);
  let drawn = 0;
  watching = new ResizeObserver(([{ contentRect }]) => {
    const width = Math.round(contentRect.width);
    if (width && width !== drawn) drawFront(svg, search, (drawn = width));
  });
  watching.observe(svg.parentElement);
}

function denseRow({ dense: { computed_by, ms } }) {
  return tableRow("dense", "", computed_by, [[inMs(ms)], ["1.0 ×"], ["100"], ["0"], [""], [""]]);
}

function row(model, { dense }) {
  const change = model.top1_change ? interval(model.top1_change, signed) : [""];
  const mark = model.chosen ? "chosen" : model.on_front ? "on the front" : "";
  const same = interval(model.agreement, (percent) => percent.toFixed(1));
  const figures = [[inMs(model.ms)], [`${inTimes(dense.ms / model.ms)} ×`], same, interval(model.kl, inDigits), change];
  return tableRow(model.name, mark, model.computed_by, [...figures, [inBytes(model.bytes)]]);
}

function tableRow(name, mark, computedBy, figures) {
  const head = make("th", { scope: "row" }, name, ...(mark ? [" ", make("em", {}, mark)] : []), make("small", {}, computedBy));
  return make("tr", {}, head, ...figures.map((inside) => make("td", {}, ...inside)));
}

/** A figure, and below it the ends of its interval where that has a width. */
function interval([value, low, high], inWords) {
  if (low === high) return [inWords(value)];
  return [inWords(value), " ", make("small", {}, `${inWords(low)} to ${inWords(high)}`)];
}

function signed(points) {
  return points < -0.05 ? `−${(-points).toFixed(1)}` : `${points < 0.05 ? "±" : "+"}${Math.abs(points).toFixed(1)}`;
}

function inDigits(kl) {
  return kl === 0 ? "0" : Number(kl.toPrecision(2)).toString();
}

/** Fill an `svg` that is so many px wide. */
function drawFront(svg, search, width) {
  const to = placesOf(search, width);
  // What is drawn on top comes last.
  const models = [...search.models].sort((one, other) => rank(one) - rank(other));
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT_PX}`);
  svg.replaceChildren(
    axes(svg, search, to),
    line(svg, search, to),
    ...models.map((model) => dot(svg, model, to)),
    ...denseMark(svg, search, to),
    ...nameOfChosen(svg, search, to),
  );
}

/** Where milliseconds and KL are in the picture. */
function placesOf({ dense, models }, width) {
  const mostMs = 1.06 * Math.max(dense.ms, ...models.map(({ ms }) => ms));
  const mostKl = 1.05 * Math.max(1e-5, ...models.map(({ kl }) => kl[2]));
  const [right, bottom] = [width - AROUND.right, HEIGHT_PX - AROUND.bottom];
  return {
    right,
    bottom,
    mostMs,
    mostKl,
    x: (ms) => AROUND.left + (ms / mostMs) * (right - AROUND.left),
    // A square root, since the dense model's KL is 0, for which a logarithm has no place.
    y: (kl) => AROUND.top + Math.sqrt(Math.max(kl, 0) / mostKl) * (bottom - AROUND.top),
  };
}

function axes(svg, { batch }, { x, y, right, bottom, mostMs, mostKl }) {
  const grid = part(svg, "g", { class: "grid" });
  for (const kl of klTicks(mostKl)) {
    grid.append(part(svg, "line", { x1: AROUND.left, x2: right, y1: y(kl), y2: y(kl) }));
    grid.append(part(svg, "text", { x: AROUND.left - 7, y: y(kl) + 4, "text-anchor": "end" }, String(kl)));
  }
  for (const ms of msTicks(mostMs, (right - AROUND.left) / 60)) {
    grid.append(part(svg, "line", { x1: x(ms), x2: x(ms), y1: AROUND.top, y2: bottom }));
    grid.append(part(svg, "text", { x: x(ms), y: bottom + 17, "text-anchor": "middle" }, String(ms)));
  }
  const together = `ms an image, ${batch === 1 ? "one" : batch} at a time`;
  grid.append(part(svg, "text", { x: 0, y: 14 }, "KL to the dense model; higher is closer"));
  grid.append(part(svg, "text", { x: right, y: HEIGHT_PX - 6, "text-anchor": "end" }, together));
  return grid;
}

function line(svg, { models }, { x, y }) {
  const ahead = models.filter(({ on_front }) => on_front);
  return part(svg, "polyline", { class: "line", points: ahead.map(({ ms, kl }) => `${x(ms)},${y(kl[0])}`).join(" ") });
}

/** A model with its interval; its name shows when a pointer rests on it. */
function dot(svg, model, { x, y }) {
  const [cx, cy, bar] = [x(model.ms), y(model.kl[0]), { y1: y(model.kl[1]), y2: y(model.kl[2]) }];
  const words =
    `${model.name} (${model.computed_by}): ${inMs(model.ms)}, ${model.agreement[0].toFixed(1)} % as dense, ` +
    `KL ${model.kl[0]}, ${inBytes(model.bytes)}`;
  return part(
    svg,
    "g",
    { class: ["dot", "dot ahead", "dot chosen"][rank(model)] },
    part(svg, "title", {}, words),
    part(svg, "circle", { cx, cy, r: 11, class: "around" }),
    part(svg, "line", { x1: cx, x2: cx, ...bar }),
    part(svg, "circle", { cx, cy, r: [3.5, 4.5, 7][rank(model)] }),
  );
}

function rank({ chosen, on_front }) {
  return chosen ? 2 : on_front ? 1 : 0;
}

function denseMark(svg, { dense }, { x, y, right }) {
  const [cx, cy] = [x(dense.ms), y(0)];
  const mark = { class: "dense", points: `${cx - 7},${cy} ${cx},${cy - 7} ${cx + 7},${cy} ${cx},${cy + 7}` };
  const name = { class: "name", x: Math.min(cx + 7, right), y: cy + 24, "text-anchor": "end" };
  return [part(svg, "polygon", mark), part(svg, "text", name, `dense, ${inMs(dense.ms)}`)];
}

/** The name is up and left of the dot, where no model of the front can be; right of it where there is no room. */
function nameOfChosen(svg, { models, dense }, { x, y }) {
  const { ms, kl } = models.find(({ chosen }) => chosen);
  const isLeft = x(ms) > AROUND.left + NAME_PX;
  const place = isLeft ? { x: x(ms) + 4, "text-anchor": "end" } : { x: x(ms) + 13 };
  const first = isLeft ? Math.min(y(kl[1]), y(kl[0]) - 7) - 23 : y(kl[0]) + 14;
  const words = ["chosen", `${inMs(ms)}, ${inTimes(dense.ms / ms)} ×`];
  return words.map((text, row) => part(svg, "text", { class: "name of-chosen", ...place, y: first + 16 * row }, text));
}

/** KL to write at an axis up to `most`, as many as have room on its square root. */
function klTicks(most) {
  const gap = GAP * Math.sqrt(most);
  const found = [];
  for (const tick of KL_TICKS.filter((each) => each <= most).reverse()) {
    const above = found.length ? Math.sqrt(found.at(-1)) : Infinity;
    if (Math.sqrt(tick) >= gap && Math.sqrt(tick) <= above - gap) found.push(tick);
  }
  return [...found, 0];
}

/** Milliseconds to write at an axis up to `most`: round ones, `count` at most after the 0. */
function msTicks(most, count) {
  const power = 10 ** Math.floor(Math.log10(most / count));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((each) => most / each <= count);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => Number((place * step).toPrecision(12)));
}

/** A part of a picture, of its own kind of element. */
function part(svg, tag, attributes, ...inside) {
  const made = document.createElementNS(svg.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}
