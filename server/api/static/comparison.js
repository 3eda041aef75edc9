// Two models over all photos so far: what they cost, how long they took, how often they agree.

import { make, makeRow } from "./elements.js";
import { top1OnRecord } from "./models.js";
import { inBytes, inDigits, inMs, inPercent, inTimes } from "./units.js";

const ALIKE = 1.1; // times: what is nearer says nothing

/** Fill a box that has a sentence and a table. */
export function showComparison(box, models, cards) {
  const labels = models.map(({ label }) => label);
  box.querySelectorAll("thead .clip").forEach((head, place) => (head.textContent = head.title = labels[place]));
  const both = cards.filter(({ agrees }) => agrees !== null);
  const figures = figuresOf(models, both);
  box.querySelector(".lead").textContent = leadOf(labels, figures, both.length);
  const rows = figures.filter(([, values]) => !values.includes(null)).map((figure) => rowOf(labels, ...figure));
  box.querySelector("tbody").replaceChildren(...rows, ...agreement(both));
}

/** Which of the two is faster and how many times, in a sentence; of what is in memory where they are alike. */
function leadOf(labels, figures, photos) {
  const [times, sizes] = ["forward", "in memory"].map((name) => figures.find(([figure]) => figure === name)[1]);
  const size = ratio(sizes) < ALIKE ? "" : `${labels[better(sizes)]} takes ${inPercent(1 / ratio(sizes))} of the other’s memory`;
  if (!(Math.min(...times) > 0)) return size && `${size}. Which is faster shows with the first photo.`;
  const seen = `(medians of ${photos === 1 ? "1 photo" : `${photos} photos`})`;
  const fast = better(times);
  if (ratio(times) >= ALIKE) return `${labels[fast]} is ${inTimes(ratio(times))} times as fast as ${labels[1 - fast]} ${seen}.`;
  return `${labels.join(" and ")} differ by less than ${inPercent(ALIKE - 1)} in speed ${seen}${size && `; ${size}`}.`;
}

function better([one, other]) {
  return one <= other ? 0 : 1;
}

/** How many times the greater is the lesser one. */
function ratio([one, other]) {
  return Math.max(one, other) / Math.min(one, other);
}

/** [name, values, value in words, whether less is better]; a value that is not known is null. */
function figuresOf(models, both) {
  const said = (measure) => models.map((model) => measure(model.said));
  const medians = (measure) => models.map((_, place) => median(both.map(({ answers }) => measure(answers[place]))));
  const [accuracies, others] = models.map(top1OnRecord);
  const shared = Object.keys(accuracies).filter((data) => data in others);
  const together = said(({ lanes }) => /micro-batch (\d+)/.exec(lanes)?.[1] ?? null);
  return [
    ["classes", said(({ num_classes }) => num_classes), String],
    ["Monarch layers", said(({ monarch_layers }) => monarch_layers), String],
    ["in memory", said(({ parameter_bytes }) => parameter_bytes.resident), inBytes, true],
    ["on disk", said(({ parameter_bytes }) => parameter_bytes.on_disk), inBytes, true],
    ...shared.map((data) => [`top-1, ${data}`, [accuracies[data], others[data]], (top1) => `${top1.toFixed(1)} %`]),
    // Where one computes eight for every photo and the other one, their forwards are not the same work.
    ...(together[0] === together[1] ? [] : [["images a forward", together, String]]),
    ["forward", medians(({ stages }) => stages.find(({ name }) => name === "forward")?.ms ?? null), inMs, true],
    ["whole request", medians(({ totalMs }) => totalMs), inMs, true],
  ];
}

/** The middle one of the values that are there; null where there is none. */
function median(values) {
  const sorted = values.filter((value) => value !== null).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

/** A row; the lesser cost is bold, and the last cell says how many times. */
function rowOf(labels, name, values, inWords, isCost = false) {
  const texts = values.map(inWords);
  if (!isCost || !(Math.min(...values) > 0)) return makeRow(name, [...texts, ""]);
  if (ratio(values) < 1.005) return makeRow(name, [...texts, "same"]);
  const place = better(values);
  const gain = [make("span", { class: "spoken" }, `${labels[place]} `), `${inDigits(ratio(values))} ×`];
  texts[place] = make("b", {}, texts[place]);
  return makeRow(name, [...texts, gain]);
}

function agreement(both) {
  if (!both.length) return [];
  const agreeing = both.filter(({ agrees }) => agrees).length;
  return [makeRow("same answer", [`${agreeing} of ${both.length}`, inPercent(agreeing / both.length), ""])];
}
