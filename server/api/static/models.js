// The models of this server: which there are, which is chosen, what each costs.

import { make } from "./elements.js";
import { inBytes, inPercent } from "./units.js";

const MOST_READ = 20;

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

/** Fill a `select`; the chosen one stays chosen where it is still there. */
export function fillSelect(select, models, { none = null, chosen = null } = {}) {
  const before = chosen ?? select.value;
  const options = models.map((model) => new Option(model.label, model.label));
  if (none !== null) options.unshift(new Option(none, ""));
  select.replaceChildren(...options);
  select.value = options.some((option) => option.value === before) ? before : options[0].value;
  select.disabled = models.length === 0;
}

/** Images of one forward, where that is fixed, as on a CPU; null where it is not. */
export function imagesAForward({ said }) {
  const found = /micro-batch (\d+)/.exec(said.lanes);
  return found ? Number(found[1]) : null;
}

/** Accuracies that its bundle records, per cent: Map by data set. */
export function top1OnRecord({ said }) {
  const all = Object.entries(said.metrics?.evaluations ?? {});
  return new Map(all.map(([data, { top1 }]) => [data, top1]).filter(([, top1]) => Number.isFinite(top1)));
}

/** What a model can answer, in a sentence, where its classes are few enough to read. */
export function knowsInWords({ label, said: { labels } }) {
  if (!labels || labels.length > MOST_READ) return "";
  return `${label} knows ${labels.join(", ")}: whatever a photo shows, it answers with these.`;
}

/** What a model is and how many bytes it has, as elements. */
export function factsOf(model) {
  const { arch, num_classes, preprocess, monarch_layers, parameter_bytes, device, dtype, graph } = model.said;
  const { dense_equivalent: dense, resident } = parameter_bytes;
  const side = preprocess.size;
  const facts = [
    ["architecture", arch],
    ["input", `${side} × ${side} px`],
    ["classes", String(num_classes)],
    ["runs on", `${device}, ${graph && graph !== dtype ? `${graph} and ` : ""}${dtype}`],
    ["Monarch layers", String(monarch_layers || "none")],
    ["in memory", inBytes(resident)],
    ["on disk", inBytes(parameter_bytes.on_disk)],
  ];
  for (const [data, top1] of top1OnRecord(model)) facts.push([`top-1, ${data}`, `${top1.toFixed(1)} %`]);
  const rows = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  const [name, list] = [make("h3", {}, model.label), make("dl", { className: "facts" }, ...rows)];
  return [name, ...(model.isCompressed && dense > 0 ? [sizeBar(resident / dense)] : []), list];
}

function sizeBar(share) {
  const part = make("span");
  part.style.width = `${Math.min(share, 1) * 100}%`;
  const bar = make("div", { className: "of", "aria-hidden": "true" }, part);
  return make("div", { className: "bytes" }, bar, make("p", {}, `${inPercent(share)} of the bytes it would have dense`));
}
