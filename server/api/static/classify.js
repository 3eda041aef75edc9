// One photo through one model: sent as it is, asked again when the server says when.

import { ask } from "./server.js";

const ATTEMPTS = 5;
const MAX_WAIT_SECONDS = 60;
const PATIENCE_MS = 15_000; // beyond the server's own deadline
const DURATION = /([\w-]+)[^,]*?;\s*dur="?([\d.]+)/g; // of Server-Timing

/**
 * @param photo Blob of the file as it is.
 * @param model one of `models.js`.
 * @param signal ends it.
 * @param onWait called with a sentence before the photo is sent again.
 * @returns {predictions, sure, stages: [{name, ms}, ...], totalMs, roundTripMs}; totalMs is null where no time is told.
 */
export async function classify(photo, model, { signal, onWait }) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await classifyOnce(photo, model, signal);
    } catch (refusal) {
      const { status, retryAfter, message } = refusal;
      if (![429, 503].includes(status) || attempt === ATTEMPTS || retryAfter > MAX_WAIT_SECONDS) throw refusal;
      const seconds = retryAfter >= 0 ? retryAfter : 2 ** (attempt - 1);
      onWait(`${message} Trying again in ${seconds} s (${attempt} of ${ATTEMPTS - 1}).`);
      await pause(1000 * seconds, signal);
    }
  }
}

async function classifyOnce(photo, model, signal) {
  const began = performance.now();
  const { body, headers } = await ask(`classify?model=${encodeURIComponent(model.name)}`, {
    method: "POST",
    body: photo,
    // The server tells a format by its bytes, so the browser's guess from the name does not count.
    headers: { "Content-Type": "application/octet-stream", ...model.headers },
    signal,
    patienceMs: model.limits.timeout_ms + PATIENCE_MS,
  });
  const roundTripMs = performance.now() - began;
  const times = [...(headers.get("server-timing") ?? "").matchAll(DURATION)];
  const stages = times.map(([, name, ms]) => ({ name, ms: Number(ms) }));
  const total = stages.find(({ name }) => name === "total");
  return {
    predictions: body.results[0].predictions,
    sure: body.results[0].sure ?? true, // not every model says so
    stages: stages.filter((stage) => stage !== total),
    totalMs: total?.ms ?? null,
    roundTripMs,
  };
}

/** Wait, but no longer than until the signal. */
async function pause(milliseconds, signal) {
  await new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", resolve, { once: true });
  });
  signal.throwIfAborted();
}
