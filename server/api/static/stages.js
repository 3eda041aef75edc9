// The stages of one request, from its Server-Timing header, and the bar that shows them.

import { make } from "./elements.js";
import { inMs } from "./units.js";

/** `forward;dur=1.5, total;dur=2` as {each: [{name, ms}, ...], totalMs}; null where there is no such header. */
export function parseStages(header) {
  const each = [];
  for (const part of (header ?? "").split(",")) {
    const [name, ...parameters] = part.split(";").map((text) => text.trim());
    const duration = parameters.find((text) => text.startsWith("dur="));
    if (name && duration) each.push({ name, ms: Number(duration.slice(4).replaceAll('"', "")) });
  }
  if (!each.length || each.some(({ ms }) => !Number.isFinite(ms))) return null;
  const total = each.find(({ name }) => name === "total");
  const stages = each.filter((stage) => stage !== total);
  return { each: stages, totalMs: total?.ms ?? stages.reduce((sum, { ms }) => sum + ms, 0) };
}

/** Milliseconds of one stage; null where it has none. */
export function stageMs(stages, name) {
  return stages?.each.find((stage) => stage.name === name)?.ms ?? null;
}

/** Fill an element with `.bar` and `p`: the shares as a bar, the longest of them in words. */
export function showStages(element, { stages, roundTripMs }) {
  const bar = element.querySelector(".bar");
  const text = element.querySelector("p");
  element.hidden = !stages;
  if (!stages) return;
  bar.replaceChildren(
    ...stages.each.map(({ name, ms }) => {
      const part = make("span", { title: `${name} ${inMs(ms)}` });
      part.dataset.stage = name;
      part.style.flexGrow = Math.max(ms, 0) * 1000; // a sum below one would leave the bar's end empty
      return part;
    }),
  );
  const longest = [...stages.each].sort((one, other) => other.ms - one.ms).slice(0, 4);
  const rest = stages.each.filter((stage) => !longest.includes(stage));
  text.replaceChildren(
    word(`${inMs(stages.totalMs)} in the server`, "total"),
    ...longest.map(({ name, ms }) => word(`${name} ${inMs(ms)}`, "", name)),
    ...(rest.length ? [word(`${rest.length} more ${inMs(rest.reduce((sum, { ms }) => sum + ms, 0))}`)] : []),
    word(`${inMs(roundTripMs)} there and back`),
  );
}

function word(text, kind = "", stage = "") {
  const span = make("span", kind ? { className: kind } : {}, text);
  if (stage) span.dataset.stage = stage;
  return span;
}
