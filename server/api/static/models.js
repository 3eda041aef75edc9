// The models of this server: how they are told apart, and what is said of them.

const MAX_CLASSES_IN_WORDS = 20;

/** The entries of /v1/models, with a `label` that tells versions of one name apart, and `headers` that choose one. */
export function withLabels(models) {
  return models.map((model) => {
    const version = model.number ?? model.version;
    const isOnly = models.filter(({ name }) => name === model.name).length === 1;
    if (isOnly) return { ...model, label: model.name, headers: {} };
    return { ...model, label: `${model.name} ${version}`, headers: { "X-Model-Version": version } };
  });
}

export function isCompressed({ monarch_layers, search }) {
  return monarch_layers > 0 || Boolean(search);
}

/** What to show beside a model at first: one of the same classes and the other kind, dense or compressed; or else one with
 * Monarch layers beside one without. */
export function counterpart(model, models) {
  const alike = models.filter(({ num_classes }) => num_classes === model.num_classes);
  const unlike = (kind) => alike.find((other) => kind(other) !== kind(model));
  return unlike(isCompressed) ?? unlike(({ monarch_layers }) => monarch_layers > 0);
}

/** A label as people write it; many lists of labels have underscores for spaces. */
export function labelInWords(label) {
  return label.replaceAll("_", " ");
}

/** What a model can answer, in a sentence, where its classes are few enough to read. */
export function knowsInWords({ label, labels, confidence }) {
  if (!labels || labels.length > MAX_CLASSES_IN_WORDS) return "";
  if (!labels.length) return `${label} has no classes: it gives embeddings, which this page does not show.`;
  const known = labels.map(labelInWords).join(", ");
  const larger = label === "demo" ? " “milkweed demo imagenet” serves one of 1,000 classes." : "";
  const doubt = confidence ? "often without being sure" : "and may be sure of it";
  return `${label} knows ${known}. Whatever else a photo shows, it answers with the nearest of these, ${doubt}.${larger}`;
}
