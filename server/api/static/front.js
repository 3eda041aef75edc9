// The front of a model that a search made: every model that was measured, in a picture and a table;
// and what the search says of the model that it chose.

import { draw, make, makeRow } from "./elements.js";
import { inBytes, inMs, inTimes } from "./units.js";

const HEIGHT_PX = 260;
const MARGIN_PX = { left: 44, right: 14, top: 52, bottom: 42 };
const NAME_PX = 118; // of the chosen model's name

let resizes = null;

/** What the search measured of the model itself, as an element; null where no search made it. */
export function claimOf({ label, said: { search } }) {
  if (!search) return null;
  const { dense, images, measured_on, models } = search;
  const { ms, agreement } = chosenOf(search);
  const peer = models.find(({ name, computed_by }) => name === "dense" && /^(?!milkweed).*bfloat16$/.test(computed_by));
  const beside = peer ? ` (${inTimes(peer.ms / ms)} over ${peer.computed_by})` : "";
  const speed = `speedup ${inTimes(dense.ms / ms)} over its dense model in ${dense.computed_by}${beside}`;
  const [same, low, high] = agreement.map(inPoints);
  const said = `${label}: ${speed}, top-1 agreement ${same} % [${low}, ${high}]`;
  const where = measured_on ? `, on ${measured_on}` : "";
  const how = `Measured when it was made, with ${images} photographs${where}: ${inMs(ms)} instead of ${inMs(dense.ms)} an image. `;
  const more = make("a", { href: "#front" }, "All that was measured");
  return make("div", {}, make("p", { class: "lead" }, said), make("p", { class: "hint" }, how, more));
}

/** Show the front of the first of these models that a search made; hide the section where there is none. */
export function showFront(section, models) {
  const model = models.find(({ said }) => said.search);
  const shown = model ? `${model.label} ${model.said.version}` : "";
  section.hidden = !model;
  if (section.dataset.of === shown) return;
  section.dataset.of = shown;
  resizes?.disconnect();
  if (!model) return;
  const { search } = model.said;
  const [svg, chosen] = [section.querySelector("svg"), chosenOf(search)];
  section.querySelector(".count").textContent = `${model.label}, from ${search.models.length} models and ${search.images} photographs`;
  const rows = search.models.map((measured) => modelRow(measured, search));
  section.querySelector("tbody").replaceChildren(denseRow(search), ...rows);
  const label = `KL to the dense model against milliseconds an image. Chosen: ${chosen.name}, ${inMs(chosen.ms)}; dense: ${inMs(search.dense.ms)}.`;
  svg.setAttribute("aria-label", label);
  // Its words keep their size, whatever its width.
  resizes = new ResizeObserver(([{ contentRect }]) => contentRect.width && drawFront(svg, search, contentRect.width));
  resizes.observe(svg);
}

function chosenOf({ models }) {
  return models.find(({ chosen }) => chosen);
}

function denseRow({ dense }) {
  return makeRow(["dense ", make("small", {}, dense.computed_by)], [inMs(dense.ms), "1.0 ×", "100", "0", "", ""]);
}

function modelRow(model, { dense }) {
  const mark = model.chosen ? "chosen" : model.on_front ? "on the front" : "";
  const heading = [`${model.name} `, make("em", {}, mark), make("small", {}, model.computed_by)];
  return makeRow(heading, [
    inMs(model.ms),
    `${inTimes(dense.ms / model.ms)} ×`,
    interval(model.agreement, inPoints),
    interval(model.kl, (kl) => String(Number(kl.toPrecision(2)))),
    model.top1_change ? interval(model.top1_change, signed) : "",
    inBytes(model.bytes),
  ]);
}

/** A figure, and below it the ends of its interval where that has a width. */
function interval([value, low, high], inWords) {
  const ends = make("small", {}, `${inWords(low)} to ${inWords(high)}`);
  return low === high ? inWords(value) : [`${inWords(value)} `, ends];
}

function inPoints(percent) {
  return percent.toFixed(1);
}

function signed(points) {
  return `${points < -0.05 ? "−" : points < 0.05 ? "±" : "+"}${inPoints(Math.abs(points))}`;
}

/** Fill an `svg` anew that is so many px wide. */
function drawFront(svg, search, width) {
  const to = placesOf(search, width);
  // What is drawn on top comes last.
  const models = search.models.toSorted((one, other) => rank(one) - rank(other));
  svg.replaceChildren(
    ...axes(search, to),
    line(search, to),
    ...models.map((model) => dot(model, to)),
    ...denseMark(search, to),
    ...nameOfChosen(search, to),
  );
}

/** Where milliseconds and KL are in the picture. */
function placesOf({ dense, models }, width) {
  const maxMs = 1.06 * Math.max(dense.ms, ...models.map(({ ms }) => ms));
  const maxKl = 1.05 * Math.max(1e-5, ...models.map(({ kl }) => kl[2]));
  const { left, top } = MARGIN_PX;
  const [right, bottom] = [width - MARGIN_PX.right, HEIGHT_PX - MARGIN_PX.bottom];
  return {
    right,
    bottom,
    maxMs,
    maxKl,
    x: (ms) => left + (ms / maxMs) * (right - left),
    // A square root, since the dense model's KL is 0, for which a logarithm has no place.
    y: (kl) => top + Math.sqrt(Math.max(kl, 0) / maxKl) * (bottom - top),
  };
}

function axes({ batch }, { x, y, right, bottom, maxMs, maxKl }) {
  const { left, top } = MARGIN_PX;
  const ticks = [0.3, 0.6, 0.9].map((share) => Number((share ** 2 * maxKl).toPrecision(1)));
  const kls = [0, ...ticks].filter((kl) => kl < maxKl);
  const together = `ms an image, ${batch === 1 ? "one" : batch} at a time`;
  return [
    ...kls.flatMap((kl) => [
      draw("line", { class: "grid", x1: left, x2: right, y1: y(kl), y2: y(kl) }),
      draw("text", { x: left - 7, y: y(kl) + 4, "text-anchor": "end" }, kl),
    ]),
    ...msTicks(maxMs, (right - left) / 60).flatMap((ms) => [
      draw("line", { class: "grid", x1: x(ms), x2: x(ms), y1: top, y2: bottom }),
      draw("text", { x: x(ms), y: bottom + 17, "text-anchor": "middle" }, ms),
    ]),
    draw("text", { x: 0, y: 14 }, "KL to the dense model; higher is closer"),
    draw("text", { x: right, y: HEIGHT_PX - 6, "text-anchor": "end" }, together),
  ];
}

/** Milliseconds to write at an axis up to `max`: round ones, `count` at most after the 0. */
function msTicks(max, count) {
  const power = 10 ** Math.floor(Math.log10(max / count));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((step) => max / step <= count);
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, place) => Number((place * step).toPrecision(12)));
}

function line({ models }, { x, y }) {
  const front = models.filter(({ on_front }) => on_front);
  return draw("polyline", { class: "line", points: front.map(({ ms, kl }) => `${x(ms)},${y(kl[0])}`).join(" ") });
}

/** A model with its interval; its name shows when a pointer rests on it. */
function dot(model, { x, y }) {
  const { name, computed_by, ms, agreement, bytes, kl: [kl, low, high] } = model;
  const quality = `top-1 agreement ${inPoints(agreement[0])} %, KL ${kl}`;
  const words = `${name} (${computed_by}): ${inMs(ms)}, ${quality}, ${inBytes(bytes)}`;
  const [cx, cy] = [x(ms), y(kl)];
  return draw(
    "g",
    { class: ["dot", "dot ahead", "dot chosen"][rank(model)] },
    draw("title", {}, words),
    draw("circle", { cx, cy, r: 11, class: "around" }),
    draw("line", { x1: cx, x2: cx, y1: y(low), y2: y(high) }),
    draw("circle", { cx, cy, r: [3.5, 4.5, 7][rank(model)] }),
  );
}

function rank({ chosen, on_front }) {
  return chosen ? 2 : on_front ? 1 : 0;
}

function denseMark({ dense }, { x, y, right }) {
  const [cx, cy] = [x(dense.ms), y(0)];
  const points = `${cx - 7},${cy} ${cx},${cy - 7} ${cx + 7},${cy} ${cx},${cy + 7}`;
  const place = { x: Math.min(cx + 7, right), y: cy + 24, "text-anchor": "end" };
  const name = draw("text", { class: "name", ...place }, `dense, ${inMs(dense.ms)}`);
  return [draw("polygon", { class: "dense", points }), name];
}

/** The name is up and left of the dot, where no model of the front can be; right of it where there is no room. */
function nameOfChosen(search, { x, y }) {
  const { ms, kl } = chosenOf(search);
  const isLeft = x(ms) > MARGIN_PX.left + NAME_PX;
  const place = isLeft ? { x: x(ms) + 4, "text-anchor": "end" } : { x: x(ms) + 13 };
  const top = isLeft ? Math.min(y(kl[1]), y(kl[0]) - 7) - 23 : y(kl[0]) + 14;
  const words = ["chosen", `${inMs(ms)}, ${inTimes(search.dense.ms / ms)} ×`];
  return words.map((text, row) => draw("text", { class: "name of-chosen", ...place, y: top + 16 * row }, text));
}
