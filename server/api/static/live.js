// The live strip: what /metrics says of the last seconds.

import { bucketsBetween, bucketsOf, parseExposition, quantileOf, sumOf } from "./exposition.js";
import { ask } from "./server.js";
import { inBytes, inMs } from "./units.js";

const EVERY_MS = 5000; // a scrape costs the server milliseconds: often enough for a person
const WINDOW_MS = 15_000;
const POINTS = 48;
const DURATION = "milkweed_http_request_duration_seconds";
const LIMITS_NOT_USE = ["free", "others"];

/** What one scrape says, taken at a time in ms. */
export function snapshotOf(text, at) {
  const samples = parseExposition(text);
  const gpu = samples.filter(
    ({ name, labels }) => name === "milkweed_gpu_memory_bytes" && !LIMITS_NOT_USE.includes(labels.kind),
  );
  return {
    at,
    images: sumOf(samples, "milkweed_images_total", { outcome: "ok" }) ?? 0,
    durations: bucketsOf(samples, DURATION, { route: "/classify", code: "200" }),
    batches: sumOf(samples, "milkweed_batch_size_count") ?? 0,
    batched: sumOf(samples, "milkweed_batch_size_sum") ?? 0,
    waiting: sumOf(samples, "milkweed_queue_depth_images"),
    memory:
      sumOf(samples, "milkweed_container_memory_working_set_bytes") ??
      sumOf(samples, "milkweed_process_memory_bytes", { kind: "rss" }),
    gpu: gpu.length ? gpu.reduce((sum, { value }) => sum + value, 0) : null,
  };
}

/** What happened between two snapshots; null of what nothing happened to. */
export function between(before, after) {
  const batches = after.batches - before.batches;
  const durations = bucketsBetween(before.durations, after.durations);
  return {
    rate: (after.images - before.images) / ((after.at - before.at) / 1000),
    p50: quantileOf(durations, 0.5),
    p99: quantileOf(durations, 0.99),
    batch: batches > 0 ? (after.batched - before.batched) / batches : null,
  };
}

/** Follow /metrics while the page is seen; `onAnswer` hears the status each time, 0 where no answer came. */
export function startStrip(onAnswer) {
  const snapshots = [];
  const rates = [];
  let timer = null;

  async function look() {
    clearTimeout(timer);
    try {
      const response = await ask("metrics", { headers: { Accept: "text/plain" }, cache: "no-store" });
      const { ok, status } = response;
      const text = await response.text();
      onAnswer(status);
      if (ok) show(text);
      else if (status !== 429 && status < 500) {
        hide(`Not shown: /metrics answers ${status} here. It may be served on another port only.`);
        return; // and that is not asked for every few seconds
      }
    } catch {
      onAnswer(0);
      snapshots.length = 0;
    }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(look, EVERY_MS);
  }

  function show(text) {
    const now = snapshotOf(text, performance.now());
    if (snapshots.length && now.images < snapshots.at(-1).images) snapshots.length = 0; // another process counts anew
    snapshots.push(now);
    while (now.at - snapshots[0].at > WINDOW_MS + EVERY_MS / 2) snapshots.shift(); // all, if nobody looked for long
    const past = snapshots.length > 1 ? between(snapshots[0], now) : null;
    put("rate", past?.rate, (rate) => (rate >= 100 ? rate.toFixed(0) : rate.toFixed(1)));
    put("p50", past?.p50, inSeconds);
    put("p99", past?.p99, inSeconds);
    put("batch", past?.batch, (size) => size.toFixed(1));
    put("waiting", now.waiting, String);
    put("memory", now.memory, inBytes);
    put("gpu", now.gpu, inBytes);
    document.getElementById("live-gpu-row").hidden = now.gpu === null;
    if (snapshots.length > 1) draw(between(snapshots.at(-2), now).rate);
    toggle(null);
  }

  function draw(rate) {
    rates.push(rate);
    if (rates.length > POINTS) rates.shift();
    const most = Math.max(1, ...rates);
    const points = rates.map((value, place) => {
      const x = 240 - ((rates.length - 1 - place) * 240) / (POINTS - 1);
      return `${x.toFixed(1)},${(38 - (36 * value) / most).toFixed(1)}`;
    });
    document.querySelector("#live-line polyline").setAttribute("points", points.join(" "));
    document.getElementById("live-line").toggleAttribute("hidden", points.length < 2);
  }

  function hide(why) {
    snapshots.length = 0;
    toggle(why);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
}

function toggle(why) {
  document.getElementById("live").hidden = why !== null;
  if (why !== null) document.getElementById("live-line").toggleAttribute("hidden", true);
  const note = document.getElementById("live-note");
  note.hidden = why === null;
  note.textContent = why ?? "";
}

function put(name, value, inWords) {
  document.getElementById(`live-${name}`).textContent = value === null || value === undefined ? "–" : inWords(value);
}

function inSeconds(seconds) {
  return inMs(seconds * 1000);
}
