// What a model is; of two, also over all photos so far: how long they took, how often they agree.

import { make, makeRow } from "./elements.js";
import { isCompressed } from "./models.js";
import { inBytes, inDigits, inMs, inPercent, inTimes } from "./units.js";

const ALIKE = 1.1; // times: what is nearer says nothing

/** Fill a box that has a sentence and a table. */
export function showFacts(box, models, cards) {
  const labels = models.map(({ label }) => label);
  const both = cards.filter(({ agrees }) => agrees !== null);
  const facts = models.length < 2 ? factsOf(models[0]) : comparisonOf(models, both);
  box.hidden = false;
  box.querySelector(".lead").textContent = models.length < 2 ? "" : leadOf(labels, facts, both.length);
  box.querySelectorAll("thead .clip").forEach((head, place) => (head.textContent = head.title = labels[place] ?? ""));
  const rows = facts.filter(([, values]) => !values.includes(null)).map((fact) => rowOf(labels, ...fact));
  box.querySelector("tbody").replaceChildren(...rows);
}

/** Which of the two is faster and how many times, in a sentence; of what is in memory where they are alike. */
function leadOf(labels, facts, photos) {
  const [times, sizes] = ["forward", "in memory"].map((name) => facts.find(([fact]) => fact === name)[1]);
  const share = inPercent(1 / ratio(sizes));
  const size = ratio(sizes) < ALIKE ? "" : `${labels[better(sizes)]} takes ${share} of the other’s memory`;
  if (!(Math.min(...times) > 0)) return size && `${size}. Which is faster shows with the first photo.`;
  const seen = `(medians of ${photos === 1 ? "1 photo" : `${photos} photos`})`;
  const [fast, slow] = better(times) ? labels.toReversed() : labels;
  if (ratio(times) >= ALIKE) return `${fast} has a speedup of ${inTimes(ratio(times))} over ${slow} ${seen}.`;
  return `${labels.join(" and ")} differ by less than ${inPercent(ALIKE - 1)} in speed ${seen}${size && `; ${size}`}.`;
}

function better([one, other]) {
  return one <= other ? 0 : 1;
}

/** How many times the greater is the lesser one. */
function ratio([one, other]) {
  return Math.max(one, other) / Math.min(one, other);
}

/** What a model is: [name, [value], value in words]; a value that is not known is null. */
function factsOf(model) {
  const { arch, preprocess, device, dtype, graph, parameter_bytes } = model;
  const { resident, dense_equivalent: dense } = parameter_bytes;
  return [
    ["architecture", [arch], String],
    ["input", [preprocess.size], (side) => `${side} × ${side} px`],
    ["runs on", [device], (device) => `${device}, ${graph && graph !== dtype ? `${graph} and ` : ""}${dtype}`],
    ...sizesOf([model]),
    ["size beside dense", [isCompressed(model) && resident < dense ? resident / dense : null], inPercent],
  ];
}

/** What both models have: [name, values, value in words, whether less is better]. */
function sizesOf(models) {
  const tops = models.map(({ metrics }) => metrics?.evaluations ?? {});
  const shared = Object.keys(tops[0]).filter((data) => tops.every((top) => Number.isFinite(top[data]?.top1)));
  return [
    ["classes", models.map(({ num_classes }) => num_classes), String],
    ["Monarch layers", models.map(({ monarch_layers }) => monarch_layers), String],
    ["in memory", models.map(({ parameter_bytes }) => parameter_bytes.resident), inBytes, true],
    ["on disk", models.map(({ parameter_bytes }) => parameter_bytes.on_disk), inBytes, true],
    ...shared.map((data) => [`top-1, ${data}`, tops.map((top) => top[data].top1), (top1) => `${top1.toFixed(1)} %`]),
  ];
}

function comparisonOf(models, both) {
  const medians = (measure) => models.map((_, place) => median(both.map(({ answers }) => measure(answers[place]))));
  const together = models.map(({ lanes }) => /micro-batch (\d+)/.exec(lanes)?.[1] ?? null);
  const agreeing = both.filter(({ agrees }) => agrees).length;
  const agreement = [`${agreeing} of ${both.length}`, inPercent(agreeing / both.length)];
  return [
    ...sizesOf(models),
    // Where one computes eight for every photo and the other one, their forwards are not the same work.
    ...(together[0] === together[1] ? [] : [["images a forward", together, String]]),
    ["forward", medians(({ stages }) => stages.find(({ name }) => name === "forward")?.ms ?? null), inMs, true],
    ["whole request", medians(({ totalMs }) => totalMs), inMs, true],
    ...(both.length ? [["same answer", agreement, String]] : []),
  ];
}

/** The middle one of the values that are there; null where there is none. */
function median(values) {
  const sorted = values.filter((value) => value !== null).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

/** A row; the lesser cost of two is bold, and the last cell says how many times. */
function rowOf(labels, name, values, inWords, isCost = false) {
  const cells = values.map(inWords);
  if (values.length < 2) return makeRow(name, cells);
  if (!isCost || !(Math.min(...values) > 0)) return makeRow(name, [...cells, ""]);
  if (ratio(values) < 1.005) return makeRow(name, [...cells, "same"]);
  const place = better(values);
  cells[place] = make("b", cells[place]);
  return makeRow(name, [...cells, [make("span.spoken", `${labels[place]} `), `${inDigits(ratio(values))} ×`]]);
}
