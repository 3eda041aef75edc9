// The live strip: what /metrics says of the last seconds.

import { find, make } from "./elements.js";
import { ask } from "./server.js";
import { inBytes, inMs } from "./units.js";

const WINDOW_MS = 15_000;
const SLACK_MS = 2500; // of a timer
const POINTS = 48;

let snapshots = [];
let isElsewhere = false;

/** What one scrape says, taken at a time in ms; null of what it has nothing of. */
export function snapshotOf(text, at) {
  const samples = [...text.matchAll(/^milkweed_(\w+)(?:\{(.*)\})? (\S+)$/gm)];
  const sum = (name, labels = /^/) => {
    const values = samples.filter(([, sample, text = ""]) => sample === name && labels.test(text));
    return values.length ? values.reduce((total, [, , , value]) => total + Number(value), 0) : null;
  };
  const durations = new Map(); // cumulative counts by upper bound, of all series together
  for (const [, name, labels, count] of samples) {
    // Labels are in the order in which the server writes them.
    const [, bound] = /^code="200".*le="(.+?)".*route="\/classify"/.exec(labels) ?? [];
    if (name !== "http_request_duration_seconds_bucket" || !bound) continue;
    const seconds = Number(bound) || Infinity;
    durations.set(seconds, (durations.get(seconds) ?? 0) + Number(count));
  }
  return {
    at,
    durations,
    images: sum("images_total", /outcome="ok"/) ?? 0,
    batches: sum("batch_size_count") ?? 0,
    batched: sum("batch_size_sum") ?? 0,
    waiting: sum("queue_depth_images"),
    memory: sum("container_memory_working_set_bytes") ?? sum("process_memory_bytes", /kind="rss"/),
    gpu: sum("gpu_memory_bytes", /kind="(?!free"|others")/), // what this server uses
  };
}

/** What happened between two snapshots; null of what nothing happened to. */
export function between(before, after) {
  const batches = after.batches - before.batches;
  const seconds = Math.max(after.at - before.at, 1) / 1000; // two answers in one tick of the clock
  const durations = [...after.durations].map(([bound, count]) => [bound, count - (before.durations.get(bound) ?? 0)]);
  durations.sort(([one], [other]) => one - other);
  return {
    rate: (after.images - before.images) / seconds,
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

/**
 * Ask /metrics and show what it says. Not again where this port has none.
 *
 * @throws Refusal of a server that does not answer, or fails.
 */
export async function followMetrics() {
  if (isElsewhere) return;
  try {
    const { body } = await ask("metrics", { as: "text", headers: { Accept: "text/plain" }, cache: "no-store" });
    show(snapshotOf(body, performance.now()));
  } catch (error) {
    if (error.status === 429) return;
    isElsewhere = error.status >= 400 && error.status < 500;
    if (!isElsewhere) throw error;
    showFigures([], `Not shown: /metrics answers ${error.status} here. It may be served on another port only.`);
    find("live-line").toggleAttribute("hidden", true);
  }
}

function show(now) {
  const isRecent = ({ at }) => now.at - at <= WINDOW_MS + SLACK_MS;
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

function figuresOf({ waiting, memory, gpu }, { rate, p50, p99, batch }) {
  const inSeconds = (seconds) => inMs(seconds * 1000);
  return [
    ["images/s", rate, (rate) => rate.toFixed(rate >= 100 ? 0 : 1)],
    ["p50", p50, inSeconds],
    ["p99", p99, inSeconds],
    ["images/batch", batch, (size) => size.toFixed(1)],
    ["waiting", waiting, String],
    ["memory", memory, inBytes],
    ...(gpu === null ? [] : [["GPU memory", gpu, inBytes]]),
  ];
}

/** Show [name, value, value in words] of each figure, or a note instead. */
function showFigures(figures, note = "") {
  const rows = figures.map(([name, value, inWords]) =>
    make("div", [make("dt", name), make("dd", value === null || value === undefined ? "–" : inWords(value))]),
  );
  find("live").replaceChildren(...rows);
  find("live-note").textContent = note;
}
