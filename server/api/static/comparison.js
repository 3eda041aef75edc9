// Two models over all photos so far: what they cost, how long they took, how often they agree.

import { make } from "./elements.js";
import { imagesAForward, top1OnRecord } from "./models.js";
import { stageMs } from "./stages.js";
import { inBytes, inMs, inPercent } from "./units.js";

/** Fill a box that has a table. */
export function showComparison(box, models, cards) {
  const heads = box.querySelectorAll("thead th");
  models.forEach(({ label }, place) => (heads[place].textContent = heads[place].title = label));
  const both = cards.filter(({ agrees }) => agrees !== null);
  const agreeing = both.filter(({ agrees }) => agrees).length;
  box.querySelector("tbody").replaceChildren(
    ...rowsOf(models, both)
      .filter(([, values]) => values.every((value) => value !== null))
      .map(([name, [one, other], inWords, hasRatio]) =>
        row(name, [inWords(one), inWords(other), hasRatio && other > 0 ? `${inShort(one / other)} ×` : ""]),
      ),
    ...(both.length ? [row("same answer", [`${agreeing} of ${both.length}`, inPercent(agreeing / both.length), ""])] : []),
  );
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

/** A ratio in about three digits. */
function inShort(ratio) {
  return ratio < 0.095 ? ratio.toPrecision(1) : ratio.toFixed(ratio < 9.95 ? 2 : ratio < 99.5 ? 1 : 0);
}

function row(name, values) {
  const line = make("tr", {}, make("th", { scope: "row", textContent: name }));
  for (const value of values) line.insertCell().textContent = value;
  return line;
}
