// The models of this server: which there are, which is chosen, what each costs.

import { make } from "./elements.js";
import { inBytes, inPercent } from "./units.js";

const MAX_CLASSES_IN_WORDS = 20;

/** The entries of /v1/models as the page needs them; `label` tells versions of one name apart. */
export function readModels({ models }) {
  return models.map((said) => {
    const several = models.filter(({ name }) => name === said.name).length > 1;
    const version = said.number ?? said.version;
    return {
      name: said.name,
      label: several ? `${said.name} ${version}` : said.name,
      headers: several ? { "X-Model-Version": version } : {},
      timeoutMs: said.limits.timeout_ms,
      isCompressed: said.monarch_layers > 0 || Boolean(said.search),
      said,
    };
  });
}

/** What to show beside a model at first: one of the same classes and the other kind, dense or compressed. */
export function counterpart(model, models) {
  return models.find(
    (other) => other.isCompressed !== model.isCompressed && other.said.num_classes === model.said.num_classes,
  );
}

/** Fill a `select`; its first option is chosen where `value` is none of them. */
export function fillSelect(select, values, value) {
  select.replaceChildren(...values.map((value) => new Option(value || "nothing", value)));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  select.disabled = false;
}

/** Accuracies that its bundle records, per cent, by data set. */
export function top1OnRecord({ said }) {
  const entries = Object.entries(said.metrics?.evaluations ?? {}).map(([data, { top1 }]) => [data, top1]);
  return Object.fromEntries(entries.filter(([, top1]) => Number.isFinite(top1)));
}

/** What a model can answer, in a sentence, where its classes are few enough to read. */
export function knowsInWords({ label, said: { labels } }) {
  if (!labels || labels.length > MAX_CLASSES_IN_WORDS) return "";
  return `${label} knows ${labels.join(", ")}: whatever a photo shows, it answers with these.`;
}

/** What a model is and how many bytes it has, as elements. */
export function factsOf(model) {
  const { arch, num_classes, preprocess, monarch_layers, parameter_bytes, device, dtype, graph } = model.said;
  const { dense_equivalent: dense, resident, on_disk } = parameter_bytes;
  const facts = {
    architecture: arch,
    input: `${preprocess.size} × ${preprocess.size} px`,
    classes: num_classes,
    "runs on": `${device}, ${graph && graph !== dtype ? `${graph} and ` : ""}${dtype}`,
    "Monarch layers": monarch_layers || "none",
    "in memory": inBytes(resident),
    "on disk": inBytes(on_disk),
  };
  for (const [data, top1] of Object.entries(top1OnRecord(model))) facts[`top-1, ${data}`] = `${top1.toFixed(1)} %`;
  const rows = Object.entries(facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  const bar = model.isCompressed && dense > 0 ? sizeBar(resident / dense) : "";
  return [make("h3", {}, model.label), bar, make("dl", { class: "facts" }, ...rows)];
}

function sizeBar(share) {
  const part = make("span", { style: { width: `${Math.min(share, 1) * 100}%` } });
  const bar = make("div", { class: "of", "aria-hidden": "true" }, part);
  return make("div", {}, bar, make("p", { class: "hint" }, `${inPercent(share)} of the bytes it would have dense`));
}
