// What the page asks its server, with which key, and what its refusals mean in words. Addresses are relative to the
// page, so that a proxy's path prefix stays.

import { find } from "./elements.js";
import { inBytes } from "./units.js";

const PATIENCE_MS = 10_000;
// A proxy may keep several servers on one origin: each page has its own key.
const KEY_PLACE = `milkweed-key ${new URL(".", document.baseURI).pathname}`;

let newKey = null;

const SENTENCES = {
  unsupported_format: "The server takes no files of this kind.",
  too_large: "This file is larger than the server takes.",
  too_many_pixels: "This picture has more pixels than the server takes.",
  undecodable: "This picture is damaged or cut off.",
  empty: "This file is empty.",
  request_timeout: "Sending it took too long.",
  unknown_model: "This model is not served any more.",
};

// Where asking again with nothing changed may help.
const PASSING = {
  overloaded: "The server has too much to do.",
  rate_limited: "This key has asked too often.",
  draining: "The server is shutting down.",
  not_ready: "The models are still loading.",
  deadline: "The server did not get to it in time.",
  internal: "The server failed.",
  gone: "The server does not answer. It has stopped, or the connection is lost.",
  cut: "The connection broke. The file may have changed or be too large for a proxy on the way.",
  silent: "The server took the photo and never answered.",
};

/** Why there is no answer: a code of the server, or `gone`, `cut`, `silent` where none came. */
export class Refusal extends Error {
  constructor(code, { message = "", status = 0, retryAfter = NaN, requestId = "" } = {}) {
    super(message);
    const isPassing = code in PASSING;
    const sentence = PASSING[code] ?? SENTENCES[code] ?? "The server refused.";
    Object.assign(this, { code, status, retryAfter, requestId, isPassing, sentence });
  }
}

/** The address of a path of this server, whatever is before it. */
export function addressOf(path) {
  return new URL(path, document.baseURI).href;
}

/**
 * A response of any status but 401: then the page asks for a key, and this asks again.
 *
 * @param patienceMs how long one request may take; not how long somebody looks for a key.
 */
export async function ask(path, { headers = {}, signal, patienceMs = PATIENCE_MS, ...options } = {}) {
  for (;;) {
    const key = keyInUse();
    const patience = AbortSignal.timeout(patienceMs);
    let response;
    try {
      response = await fetch(addressOf(path), {
        ...options,
        headers: key ? { ...headers, "X-API-Key": key } : headers,
        signal: signal ? AbortSignal.any([signal, patience]) : patience,
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Refusal(patience.aborted ? "silent" : (await isThere()) ? "cut" : "gone");
    }
    if (response.status !== 401) return response;
    // Another key may have come while this request was on its way.
    if (keyInUse() === key) await (newKey ??= askForKey(key).finally(() => (newKey = null)));
    signal?.throwIfAborted();
  }
}

/** JSON of a response that is a success. A refusal may be a proxy's, which knows nothing of our shape. */
export async function jsonOf(response) {
  if (!response.ok) {
    const { error, request_id: requestId } = await response.json().catch(() => ({}));
    const retryAfter = Number.parseFloat(response.headers.get("retry-after"));
    const facts = { message: error?.message, status: response.status, retryAfter, requestId };
    throw new Refusal(error?.code ?? "other", facts);
  }
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(error.name === "TimeoutError" ? "silent" : "cut"); // it broke off, or is none
  }
}

async function isThere() {
  const options = { cache: "no-store", signal: AbortSignal.timeout(2000) };
  return fetch(addressOf("livez"), options).then(() => true, () => false);
}

/** Wait, but no longer than until the signal. */
export async function pause(milliseconds, signal) {
  await new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", resolve, { once: true });
  });
  signal?.throwIfAborted();
}

/** The key that requests carry now; null where none was needed yet. */
export function keyInUse() {
  return sessionStorage.getItem(KEY_PLACE);
}

/** Wait for another key than the one that was refused. */
function askForKey(refused) {
  const [form, field] = [find("key"), find("key-text")];
  form.hidden = false;
  find("key-error").textContent = refused ? "This server does not know that key." : "";
  field.focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY_PLACE, field.value.trim());
      form.reset();
      form.hidden = true;
      find("choose").focus();
      resolve();
    };
  });
}

/** {title, detail, isPassing, code} of what failed with a file. */
export function inWords(error, file) {
  if (!(error instanceof Refusal)) return { title: "The page failed.", detail: String(error), isPassing: false };
  const { code, message, status, requestId, isPassing, sentence } = error;
  const [, limit] = (code === "too_large" && /limit (?:is )?(\d+)/.exec(message)) || [];
  const tooLarge = `This file is too large: it has ${inBytes(file.size)}, the limit is ${inBytes(Number(limit))}.`;
  const origin = status ? `${status} ${code}${status >= 500 && requestId ? `, request ${requestId}` : ""}` : "";
  const words = code === "too_large" ? "" : message;
  return { title: limit ? tooLarge : sentence, detail: [words, origin].filter(Boolean).join(" · "), isPassing, code };
}
