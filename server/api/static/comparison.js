// Two models over all photos so far: what they cost, how long they took, how often they agree.

import { make } from "./elements.js";
import { imagesAForward, top1OnRecord } from "./models.js";
import { stageMs } from "./stages.js";
import { inBytes, inMs, inPercent, inTimes } from "./units.js";

const ALIKE = 1.1; // times: what is nearer says nothing

/** Fill a box that has a sentence and a table. */
export function showComparison(box, models, cards) {
  const heads = box.querySelectorAll("thead th");
  models.forEach(({ label }, place) => (heads[place].textContent = heads[place].title = label));
  const both = cards.filter(({ agrees }) => agrees !== null);
  const rows = rowsOf(models, both).filter(([, values]) => values.every((value) => value !== null));
  box.querySelector(".lead").textContent = leadOf(models, rows, both.length);
  box.querySelector("tbody").replaceChildren(...rows.map((each) => row(models, ...each)), ...agreement(both));
}

/** Which of the two is faster and how many times, in a sentence; of what is in memory where they are alike. */
function leadOf(models, rows, photos) {
  const valuesOf = (name) => rows.find(([each]) => each === name)?.[1];
  const [times, sizes] = [valuesOf("forward"), valuesOf("in memory")];
  const [light, lighter] = [better(sizes), ratio(sizes)];
  const size = lighter < ALIKE ? "" : `${models[light].label} takes ${inPercent(1 / lighter)} of the other’s memory`;
  if (!times || Math.min(...times) <= 0) return size && `${size}. Which is faster shows with the first photo.`;
  const [first, second] = models.map(({ label }) => label);
  const seen = `(medians of ${photos === 1 ? "1 photo" : `${photos} photos`})`;
  if (ratio(times) < ALIKE) return `${first} and ${second} differ by less than ${inPercent(ALIKE - 1)} in speed ${seen}${size && `; ${size}`}.`;
  const fast = better(times);
  return `${models[fast].label} is ${inTimes(ratio(times))} times as fast as ${models[1 - fast].label} ${seen}.`;
}

function better([one, other]) {
  return one <= other ? 0 : 1;
}

/** How many times the greater is the lesser one. */
function ratio([one, other]) {
  return Math.max(one, other) / Math.min(one, other);
}

function agreement(both) {
  if (!both.length) return [];
  const agreeing = both.filter(({ agrees }) => agrees).length;
  return [tableRow("same answer", [`${agreeing} of ${both.length}`, inPercent(agreeing / both.length), ""])];
}

function rowsOf(models, both) {
  const bytes = (form) => models.map(({ said }) => said.parameter_bytes[form]);
  const medians = (measure) => models.map((_, place) => median(both.map(({ answers }) => measure(answers[place]))));
  const [accuracies, others] = models.map(top1OnRecord);
  const shared = [...accuracies].filter(([data]) => others.has(data));
  const together = models.map(imagesAForward);
  return [
    ["classes", models.map(({ said }) => said.num_classes), String, false],
    ["Monarch layers", models.map(({ said }) => said.monarch_layers), String, false],
    ["in memory", bytes("resident"), inBytes, true],
    ["on disk", bytes("on_disk"), inBytes, true],
    ...shared.map(([data, top1]) => [`top-1, ${data}`, [top1, others.get(data)], (value) => `${value.toFixed(1)} %`, false]),
    // Where one computes eight for every photo and the other one, their forwards are not the same work.
    ...(together[0] === together[1] ? [] : [["images a forward", together, String, false]]),
    ["forward", medians(({ stages }) => stageMs(stages, "forward")), inMs, true],
    ["whole request", medians(({ stages }) => stages?.totalMs ?? null), inMs, true],
  ];
}

/** The middle one of the values that are there; null where there is none. */
export function median(values) {
  const sorted = values.filter((value) => value !== null).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** A row; of what is better where it is less, the better value is bold and says how many times. */
function row(models, name, values, inWords, lessIsBetter) {
  const texts = values.map(inWords);
  if (!lessIsBetter || !(Math.min(...values) > 0)) return tableRow(name, [...texts, ""]);
  const times = ratio(values);
  if (times < 1.005) return tableRow(name, [...texts, "same"]);
  const least = better(values);
  const line = tableRow(name, [...texts, `${inShort(times)} ×`]);
  line.cells[1 + least].className = "better";
  line.cells[3].prepend(make("span", { className: "spoken" }, `${models[least].label} `));
  return line;
}

/** A ratio in about three digits. */
function inShort(times) {
  return times.toFixed(times < 9.95 ? 2 : times < 99.5 ? 1 : 0);
}

function tableRow(name, values) {
  const line = make("tr", {}, make("th", { scope: "row", textContent: name }));
  for (const value of values) line.insertCell().textContent = value;
  return line;
}
