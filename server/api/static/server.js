// What the page asks its server, with which key, and what its refusals mean in words. Addresses are relative to the
// page, so that a proxy's path prefix stays.

import { inBytes } from "./units.js";

const PATIENCE_MS = 10_000;
// A proxy may keep several servers on one origin: each page has its own key.
const KEY_PLACE = `milkweed-key ${new URL(".", document.baseURI).pathname}`;

let asking = null;

const SENTENCES = {
  unsupported_format: "The server takes no files of this kind.",
  too_many_pixels: "This picture has more pixels than the server takes.",
  undecodable: "This picture is damaged or cut off.",
  empty: "This file is empty.",
  overloaded: "The server has too much to do.",
  rate_limited: "This key has asked too often.",
  draining: "The server is shutting down.",
  not_ready: "The models are still loading.",
  deadline: "The server did not get to it in time.",
  request_timeout: "Sending it took too long.",
  unknown_model: "This model is not served any more.",
  internal: "The server failed.",
  gone: "The server does not answer. It has stopped, or the connection is lost.",
  cut: "The connection broke. The file may have changed or be too large for a proxy on the way.",
  silent: "The server took the photo and never answered.",
};

// Where asking again with nothing changed may help.
const PASSING = ["overloaded", "rate_limited", "draining", "not_ready", "deadline", "internal", "gone", "cut", "silent"];

/** Why there is no answer: a code of the server, or `gone`, `cut`, `silent` where none came. */
export class Refusal extends Error {
  constructor(code, message = "", { status = 0, retryAfter = null, requestId = "" } = {}) {
    super(message);
    Object.assign(this, { code, status, retryAfter, requestId });
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
      if (patience.aborted) throw new Refusal("silent");
      throw new Refusal((await isThere()) ? "cut" : "gone");
    }
    if (response.status !== 401) return response;
    await newKey(key, signal);
  }
}

/** What a response that is no success says; it may be a proxy's, which knows nothing of our shape. */
async function refusalOf(response) {
  let said = {};
  try {
    said = await response.json();
  } catch {
    // Not JSON: the status alone has to do.
  }
  const wait = Number(response.headers.get("retry-after"));
  return new Refusal(said.error?.code ?? "other", said.error?.message ?? "", {
    status: response.status,
    retryAfter: Number.isFinite(wait) && response.headers.has("retry-after") ? wait : null,
    requestId: said.request_id ?? "",
  });
}

/** JSON of a response that is a success. */
export async function jsonOf(response) {
  if (!response.ok) throw await refusalOf(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(error.name === "TimeoutError" ? "silent" : "cut"); // it broke off, or is none
  }
}

async function isThere() {
  try {
    await fetch(addressOf("livez"), { cache: "no-store", signal: AbortSignal.timeout(2000) });
    return true;
  } catch {
    return false;
  }
}

/** The key that requests carry now; null where none was needed yet. */
export function keyInUse() {
  return sessionStorage.getItem(KEY_PLACE);
}

/** Wait for another key than the one that was refused. */
function newKey(refused, signal) {
  if (keyInUse() !== refused) return Promise.resolve(); // it came while this request was on its way
  asking ??= askForIt(refused).finally(() => (asking = null));
  if (!signal) return asking;
  return Promise.race([
    asking,
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
  ]);
}

function askForIt(refused) {
  const form = document.getElementById("key");
  const field = document.getElementById("key-text");
  const failure = document.getElementById("key-error");
  form.hidden = false;
  failure.textContent = refused ? "This server does not know that key." : "";
  field.value = "";
  field.focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(key)) {
        failure.textContent = "A key has letters, digits and signs, and no spaces.";
        return;
      }
      sessionStorage.setItem(KEY_PLACE, key);
      field.value = "";
      form.hidden = true;
      document.getElementById("choose").focus();
      resolve();
    };
  });
}

/** {title, detail, passing, code} of a refusal. */
export function inWords(error, file) {
  if (!(error instanceof Refusal)) return { title: "The page failed.", detail: String(error), passing: false, code: "" };
  const { code, message, status, requestId } = error;
  const title = code === "too_large" ? tooLarge(message, file) : (SENTENCES[code] ?? "The server refused.");
  const said = message && code !== "too_large" ? message : "";
  const origin = status ? `${status} ${code}${status >= 500 && requestId ? `, request ${requestId}` : ""}` : "";
  return { title, detail: [said, origin].filter(Boolean).join(" · "), passing: PASSING.includes(code), code };
}

/** Before a photo is sent again. */
export function waitInWords({ seconds, attempt, attempts, refusal }) {
  const why = SENTENCES[refusal.code] ?? `The server answered ${refusal.status}.`;
  return `${why} Trying again in ${seconds} s (${attempt} of ${attempts - 1}).`;
}

function tooLarge(message, file) {
  const limit = /limit (?:is )?(\d+)/.exec(message);
  if (!limit) return "This file is larger than the server takes.";
  return `This file is too large: it has ${inBytes(file.size)}, the limit is ${inBytes(Number(limit[1]))}.`;
}
