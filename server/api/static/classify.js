// One photo through one model: sent as it is, asked again when the server says when.

import { Refusal, ask, jsonOf } from "./server.js";
import { parseStages } from "./stages.js";

const ATTEMPTS = 5;
const LONGEST_WAIT_SECONDS = 60;
const PATIENCE_MS = 15_000; // beyond the server's own deadline

/**
 * @param photo Blob of the file as it is.
 * @param model one of `models.js`.
 * @param signal ends it.
 * @param onWait called with {seconds, attempt, attempts, refusal} before the photo is sent again.
 * @returns {predictions, stages, roundTripMs}
 */
export async function classify(photo, model, { signal, onWait }) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await once(photo, model, signal);
    } catch (refusal) {
      const again = refusal instanceof Refusal && (refusal.status === 429 || refusal.status === 503);
      if (!again || attempt === ATTEMPTS || refusal.retryAfter > LONGEST_WAIT_SECONDS) throw refusal;
      const seconds = refusal.retryAfter ?? 2 ** (attempt - 1);
      onWait({ seconds, attempt, attempts: ATTEMPTS, refusal });
      await pause(seconds, signal);
    }
  }
}

async function once(photo, model, signal) {
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
  return {
    predictions: results[0].predictions,
    stages: parseStages(response.headers.get("server-timing")),
    roundTripMs: performance.now() - began,
  };
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}
