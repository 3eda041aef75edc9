// Prometheus text: its samples, and what the difference of two scrapes says.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$/;
const LABEL = /([a-zA-Z_]\w*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\\\": "\\", "\\n": "\n", '\\"': '"' };

/** Samples of the text format 0.0.4: [{name, labels, value}, ...]; lines that are none are passed over. */
export function parseExposition(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\[\\n"]/g, (escape) => ESCAPES[escape]);
    }
    samples.push({ name: found[1], labels, value: readNumber(found[3]) });
  }
  return samples;
}

/** Sum of a name's samples whose labels are as wanted; null where there are none. */
export function sumOf(samples, name, wanted = {}) {
  const found = matching(samples, name, wanted);
  return found.length ? found.reduce((sum, { value }) => sum + value, 0) : null;
}

/** Cumulative counts of a histogram by upper bound, all its series together: Map of le to count, ascending. */
export function bucketsOf(samples, name, wanted = {}) {
  const buckets = new Map();
  for (const { labels, value } of matching(samples, `${name}_bucket`, wanted)) {
    const bound = readNumber(labels.le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + value);
  }
  return new Map([...buckets].sort(([one], [other]) => one - other));
}

/** What came between two scrapes. */
export function bucketsBetween(before, after) {
  return new Map([...after].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]));
}

/**
 * A quantile of a histogram as Prometheus' histogram_quantile has it: linear within a bucket, from 0 on; beyond the
 * last bound, that bound. null where nothing was counted.
 */
export function quantileOf(buckets, quantile) {
  const bounds = [...buckets.keys()];
  const total = buckets.get(bounds.at(-1)) ?? 0;
  if (!(total > 0)) return null;
  const rank = quantile * total;
  let below = 0;
  let lower = 0;
  for (const bound of bounds) {
    const count = buckets.get(bound);
    if (count >= rank && count > below) {
      return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below);
    }
    [below, lower] = [count, bound];
  }
  return lower;
}

function matching(samples, name, wanted) {
  return samples.filter(
    (sample) => sample.name === name && Object.entries(wanted).every(([label, value]) => sample.labels[label] === value),
  );
}

function readNumber(text) {
  if (/^[+-]?Inf(inity)?$/i.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
  return Number(text);
}
