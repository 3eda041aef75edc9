// One photo through one model: sent as it is, asked again when the server says when.

import { Refusal, ask, jsonOf, pause } from "./server.js";

const ATTEMPTS = 5;
const MAX_WAIT_SECONDS = 60;
const PATIENCE_MS = 15_000; // beyond the server's own deadline
const DURATION = /([\w-]+)[^,]*?;\s*dur="?([\d.]+)/g; // of Server-Timing

/**
 * @param photo Blob of the file as it is.
 * @param model one of `models.js`.
 * @param signal ends it.
 * @param onWait called with a sentence before the photo is sent again.
 * @returns {predictions, stages, totalMs, roundTripMs}
 */
export async function classify(photo, model, { signal, onWait }) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await classifyOnce(photo, model, signal);
    } catch (refusal) {
      const isPassing = refusal instanceof Refusal && [429, 503].includes(refusal.status);
      if (!isPassing || attempt === ATTEMPTS || refusal.retryAfter > MAX_WAIT_SECONDS) throw refusal;
      const seconds = refusal.retryAfter >= 0 ? refusal.retryAfter : 2 ** (attempt - 1);
      onWait(`${refusal.sentence} Trying again in ${seconds} s (${attempt} of ${ATTEMPTS - 1}).`);
      await pause(1000 * seconds, signal);
    }
  }
}

async function classifyOnce(photo, model, signal) {
  const began = performance.now();
  const response = await ask(`classify?model=${encodeURIComponent(model.name)}`, {
    method: "POST",
    body: photo,
    // The server tells a format by its bytes, so the browser's guess from the name does not count.
    headers: { "Content-Type": "application/octet-stream", ...model.headers },
    signal,
    patienceMs: model.timeoutMs + PATIENCE_MS,
  });
  const { results } = await jsonOf(response);
  const roundTripMs = performance.now() - began;
  return { predictions: results[0].predictions, ...timesOf(response.headers.get("server-timing") ?? ""), roundTripMs };
}

/** `forward;dur=1.5, total;dur=2` as {stages: [{name, ms}, ...], totalMs}. */
function timesOf(header) {
  const times = [...header.matchAll(DURATION)].map(([, name, ms]) => ({ name, ms: Number(ms) }));
  const total = times.find(({ name }) => name === "total");
  return { stages: times.filter((time) => time !== total), totalMs: total?.ms ?? null };
}
