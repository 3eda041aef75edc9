// The live strip: what /metrics says of the last seconds.

import { find, make } from "./elements.js";
import { ask } from "./server.js";
import { inBytes, inMs } from "./units.js";

const EVERY_MS = 5000; // a scrape costs the server milliseconds: often enough for a person
const WINDOW_MS = 15_000;
const POINTS = 48;

/** What one scrape says, taken at a time in ms. Labels are in the order in which the server writes them. */
export function snapshotOf(text, at) {
  const samples = [...text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)$/gm)];
  const select = (name, labels = /^/) =>
    samples.filter(([, sample, text = ""]) => sample === name && labels.test(text));
  const sum = (name, labels) => sumOf(select(name, labels));
  return {
    at,
    images: sum("milkweed_images_total", /outcome="ok"/) ?? 0,
    durations: bucketsOf(select("milkweed_http_request_duration_seconds_bucket", /code="200".*route="\/classify"/)),
    batches: sum("milkweed_batch_size_count") ?? 0,
    batched: sum("milkweed_batch_size_sum") ?? 0,
    waiting: sum("milkweed_queue_depth_images"),
    memory: sum("milkweed_container_memory_working_set_bytes") ?? sum("milkweed_process_memory_bytes", /kind="rss"/),
    gpu: sum("milkweed_gpu_memory_bytes", /kind="(?!free"|others")/), // what this server uses
  };
}

/** null where there are no samples. */
function sumOf(samples) {
  return samples.length ? samples.reduce((sum, [, , , value]) => sum + Number(value), 0) : null;
}

/** Cumulative counts of a histogram by upper bound, all its series together, ascending. */
function bucketsOf(samples) {
  const boundOf = ([, , labels]) => Number(/le="\+?([^"]+)"/.exec(labels)[1].replace("Inf", "Infinity"));
  const series = Object.entries(Object.groupBy(samples, boundOf));
  return new Map(series.map(([bound, some]) => [Number(bound), sumOf(some)]).sort(([one], [other]) => one - other));
}

/** What happened between two snapshots; null of what nothing happened to. */
export function between(before, after) {
  const batches = after.batches - before.batches;
  const durations = [...after.durations].map(([bound, count]) => [bound, count - (before.durations.get(bound) ?? 0)]);
  return {
    rate: (after.images - before.images) / ((after.at - before.at) / 1000),
    p50: quantileOf(durations, 0.5),
    p99: quantileOf(durations, 0.99),
    batch: batches > 0 ? (after.batched - before.batched) / batches : null,
  };
}

/**
 * A quantile as Prometheus' histogram_quantile has it: linear within a bucket, from 0 on; beyond the last bound, that
 * bound. null where nothing was counted.
 */
function quantileOf(buckets, quantile) {
  const rank = quantile * (buckets.at(-1)?.[1] ?? 0);
  if (!(rank > 0)) return null;
  const place = buckets.findIndex(([, count]) => count >= rank);
  const [bound, count] = buckets[place];
  const [lower, below] = buckets[place - 1] ?? [0, 0];
  return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below);
}

/** Follow /metrics while the page is seen; `onAnswer` hears the status each time, 0 where no answer came. */
export function startStrip(onAnswer) {
  let snapshots = [];
  let timer = null;

  async function look() {
    clearTimeout(timer);
    try {
      const response = await ask("metrics", { headers: { Accept: "text/plain" }, cache: "no-store" });
      const { ok, status } = response;
      const text = await response.text();
      onAnswer(status);
      if (ok) show(snapshotOf(text, performance.now()));
      else if (status !== 429 && status < 500) {
        snapshots = [];
        showFigures([], `Not shown: /metrics answers ${status} here. It may be served on another port only.`);
        return; // and that is not asked for every few seconds
      }
    } catch {
      onAnswer(0);
      snapshots = [];
    }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(look, EVERY_MS);
  }

  function show(now) {
    const isRecent = ({ at }) => now.at - at <= WINDOW_MS + EVERY_MS / 2;
    const last = snapshots.at(-1);
    // Nobody looked for long, or another process counts anew.
    if (last && (!isRecent(last) || now.images < last.images)) snapshots = [];
    snapshots = [...snapshots, now].slice(-POINTS - 1);
    showFigures(figuresOf(now, snapshots.length > 1 ? between(snapshots.find(isRecent), now) : {}));
    const rates = snapshots.slice(1).map((snapshot, place) => between(snapshots[place], snapshot).rate);
    const points = rates.map((rate, place) => `${POINTS - rates.length + place},${1 - rate / Math.max(1, ...rates)}`);
    find("live-line").firstElementChild.setAttribute("points", points.join(" "));
    find("live-line").toggleAttribute("hidden", points.length < 2);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
}

function figuresOf({ waiting, memory, gpu }, { rate, p50, p99, batch }) {
  const figure = (name, value, inWords) => [name, value === null || value === undefined ? "–" : inWords(value)];
  return [
    figure("images/s", rate, (rate) => rate.toFixed(rate >= 100 ? 0 : 1)),
    figure("p50", p50, (seconds) => inMs(seconds * 1000)),
    figure("p99", p99, (seconds) => inMs(seconds * 1000)),
    figure("images/batch", batch, (size) => size.toFixed(1)),
    figure("waiting", waiting, String),
    figure("memory", memory, inBytes),
    ...(gpu === null ? [] : [figure("GPU memory", gpu, inBytes)]),
  ];
}

function showFigures(figures, note = "") {
  const rows = figures.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  find("live").replaceChildren(...rows);
  find("live-note").textContent = note;
  if (note) find("live-line").toggleAttribute("hidden", true);
}
