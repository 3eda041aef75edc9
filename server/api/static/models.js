// The models of this server: which there are, and which is chosen.

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

/** What a model can answer, in a sentence, where its classes are few enough to read. */
export function knowsInWords({ label, said: { labels } }) {
  if (!labels || labels.length > MAX_CLASSES_IN_WORDS) return "";
  return `${label} knows ${labels.join(", ")}: whatever a photo shows, it answers with these.`;
}
