// What a search measured: every model in a picture and a table, and what it says of the model that it chose.

import { draw, make, makeRow } from "./elements.js";
import { inBytes, inMs, inTimes } from "./units.js";

const TICKS = 6; // of milliseconds at most, after the 0
const NAME_PX = 75; // what the chosen model's name needs left of its dot

/** Show what searches measured of these models themselves, where searches made them. */
export function showClaims(box, models) {
  box.replaceChildren(...models.filter(({ search }) => search).map(claimOf));
}

function claimOf({ label, search }) {
  const { batch, dense, peer, images, measured_on } = search;
  const { ms, speedup, agreement } = chosenOf(search);
  const beside = peer ? ` (${inTimes(peer.speedup)} over ${peer.computed_by})` : "";
  const speed = `speedup ${inTimes(speedup)} over its dense model in ${dense.computed_by}${beside}`;
  const [same, low, high] = agreement.map(inPoints);
  const said = `${label}: ${speed}, top-1 agreement ${same} % [${low}, ${high}]`;
  const where = measured_on ? `, on ${measured_on}` : "";
  const made = `Measured when it was made, with ${images} photographs${where}`;
  const together = `${batch === 1 ? "one" : batch} at a time`; // the speedup is the least of all batch sizes
  const how = `${made}: ${inMs(ms)} instead of ${inMs(dense.ms)} an image, ${together}. `;
  const more = make("a", "All that was measured", { href: "#front" });
  return make("div", [make("p.lead", said), make("p.hint", [how, more])]);
}

/** Show the front of the first of these models that a search made; hide the section where there is none. */
export function showFront(section, models) {
  const model = models.find(({ search }) => search);
  section.hidden = !model;
  if (!model) return;
  const { label, search } = model;
  const { dense, images, models: measured } = search;
  const { name, ms } = chosenOf(search);
  const [heading, picture, table] = ["p", "svg", "tbody"].map((part) => section.querySelector(part));
  heading.textContent = `${label}, from ${measured.length} models and ${images} photographs`;
  const words = `Chosen: ${name}, ${inMs(ms)}; dense: ${inMs(dense.ms)}.`;
  picture.setAttribute("aria-label", `KL to the dense model against milliseconds an image. ${words}`);
  picture.replaceChildren(...pictureOf(search, picture.clientWidth));
  table.replaceChildren(denseRow(dense), ...measured.map(modelRow));
}

function chosenOf({ models }) {
  return models.find(({ chosen }) => chosen);
}

function denseRow(dense) {
  return makeRow(["dense ", make("small", dense.computed_by)], [inMs(dense.ms), "1.0 ×", "100", "0", "", "", ""]);
}

function modelRow(model) {
  const mark = model.chosen ? "chosen" : model.on_front ? "on the front" : "";
  return makeRow([`${model.name} `, make("em", mark), make("small", model.computed_by)], [
    inMs(model.ms),
    model.over_peer
      ? [`${inTimes(model.speedup)} × `, make("small", `${inTimes(model.over_peer)} ×`)]
      : `${inTimes(model.speedup)} ×`,
    interval(model.agreement, inPoints),
    interval(model.kl, (kl) => String(Number(Number(kl.toPrecision(2)).toFixed(4)))),
    model.expected_change ? interval(model.expected_change, signed) : "",
    model.top1_change ? interval(model.top1_change, signed) : "",
    inBytes(model.bytes),
  ]);
}

/** A figure, and below it the ends of its interval where that has a width. */
function interval([value, low, high], inWords) {
  return low === high ? inWords(value) : [`${inWords(value)} `, make("small", `${inWords(low)} to ${inWords(high)}`)];
}

function inPoints(percent) {
  return percent.toFixed(1);
}

function signed(points) {
  return `${points < -0.05 ? "−" : points < 0.05 ? "±" : "+"}${inPoints(Math.abs(points))}`;
}

/** The parts of the picture. Places in it are percent, so that its words keep their size, whatever its width. */
function pictureOf(search, width) {
  const { dense, models } = search;
  const maxMs = 1.06 * Math.max(dense.ms, ...models.map(({ ms }) => ms));
  const maxKl = 1.05 * Math.max(1e-5, ...models.map(({ kl }) => kl[2]));
  const x = (ms) => `${(100 * ms) / maxMs}%`;
  // A square root, since the dense model's KL is 0, for which a logarithm has no place.
  const y = (kl) => `${100 * Math.sqrt(Math.max(kl, 0) / maxKl)}%`;
  const to = { maxMs, maxKl, x, y };
  const front = models.filter(({ on_front }) => on_front);
  return [
    ...axes(search, to),
    ...front.slice(1).map(({ ms, kl }, place) => {
      const before = front[place];
      return draw("line.path", { x1: x(before.ms), y1: y(before.kl[0]), x2: x(ms), y2: y(kl[0]) });
    }),
    // What is drawn on top comes last.
    ...models.toSorted((one, other) => rank(one) - rank(other)).map((model) => dot(model, to)),
    draw("rect.dense", { x: x(dense.ms), y: 0, width: 10, height: 10 }),
    draw("text.name", { x: x(dense.ms), dx: 7, y: 24, "text-anchor": "end" }, `dense, ${inMs(dense.ms)}`),
    ...nameOfChosen(search, width, to),
  ];
}

function axes({ batch }, { maxMs, maxKl, x, y }) {
  const kls = [0.3, 0.6, 0.9].map((share) => Number((share ** 2 * maxKl).toPrecision(1)));
  const power = 10 ** Math.floor(Math.log10(maxMs / TICKS));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((step) => maxMs / step <= TICKS);
  const times = Array.from({ length: Math.floor(maxMs / step) + 1 }, (_, place) => place * step);
  const together = `ms an image, ${batch === 1 ? "one" : batch} at a time`;
  return [
    ...[0, ...kls.filter((kl) => kl < maxKl)].flatMap((kl) => [
      draw("line.grid", { x1: 0, x2: "100%", y1: y(kl), y2: y(kl) }),
      draw("text", { x: 0, dx: -7, y: y(kl), dy: 4, "text-anchor": "end" }, kl),
    ]),
    ...times.flatMap((ms) => [
      draw("line.grid", { x1: x(ms), x2: x(ms), y1: 0, y2: "100%" }),
      draw("text", { x: x(ms), y: "100%", dy: 17, "text-anchor": "middle" }, Number(ms.toPrecision(12))),
    ]),
    draw("text", { x: 0, dx: -44, y: -38 }, "KL to the dense model; higher is closer"),
    draw("text", { x: "100%", y: "100%", dy: 36, "text-anchor": "end" }, together),
  ];
}

/** A model with its interval; its name shows when a pointer rests on it. */
function dot(model, { x, y }) {
  const { name, computed_by, ms, agreement, bytes, kl: [kl, low, high] } = model;
  const quality = `top-1 agreement ${inPoints(agreement[0])} %, KL ${kl}`;
  const [cx, cy] = [x(ms), y(kl)];
  return draw(["g.dot", "g.dot.ahead", "g.dot.chosen"][rank(model)], {}, [
    draw("title", {}, `${name} (${computed_by}): ${inMs(ms)}, ${quality}, ${inBytes(bytes)}`),
    draw("circle.around", { cx, cy, r: 11 }),
    draw("line", { x1: cx, x2: cx, y1: y(low), y2: y(high) }),
    draw("circle", { cx, cy, r: [3.5, 4.5, 7][rank(model)] }),
  ]);
}

function rank({ chosen, on_front }) {
  return chosen ? 2 : on_front ? 1 : 0;
}

/** The name is up and left of the dot, where no model of the front can be; right of it where there is no room. */
function nameOfChosen(search, width, { maxMs, x, y }) {
  const { ms, speedup, kl } = chosenOf(search);
  const isLeft = (ms / maxMs) * width > NAME_PX;
  const place = isLeft ? { dx: 4, y: y(kl[1]), "text-anchor": "end" } : { dx: 13, y: y(kl[0]) };
  return ["chosen", `${inMs(ms)}, ${inTimes(speedup)} ×`].map((text, row) =>
    draw("text.name.chosen", { x: x(ms), ...place, dy: (isLeft ? -30 : 14) + 16 * row }, text),
  );
}
