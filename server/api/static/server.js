// What the page asks its server, with which key, and what a refusal means in words. Addresses are relative to the
// page, so that a proxy's path prefix stays.

import { find } from "./elements.js";
import { inBytes } from "./units.js";

const PATIENCE_MS = 10_000;
// A proxy may keep several servers on one origin: each page has its own key.
const KEY_PLACE = `milkweed-key ${new URL(".", document.baseURI).pathname}`;

let newKey = null;

const SENTENCES = {
  unsupported_format: "The server takes no files of this kind.",
  too_large: "This file is too large.",
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

/** Why there is no answer, in words: a code of the server, or `gone`, `cut`, `silent` where none came. */
export class Refusal extends Error {
  constructor(code, { message = "", status = 0, retryAfter = NaN, requestId = "" } = {}) {
    super(PASSING[code] ?? SENTENCES[code] ?? "The server refused.");
    const inUnits = (_, bytes) => inBytes(Number(bytes));
    const words = code === "too_large" ? message.replace(/(\d+)( bytes)?/g, inUnits) : message;
    const origin = status && `${status} ${code}${status >= 500 && requestId ? `, request ${requestId}` : ""}`;
    const detail = [words, origin].filter(Boolean).join(" · ");
    Object.assign(this, { code, status, retryAfter, detail, isPassing: code in PASSING });
  }
}

/**
 * {body, headers} of an answer, whose body is read `as` "json" or "text". On 401 the page asks for a key, and this asks
 * again.
 *
 * @param patienceMs how long one request may take; not how long somebody looks for a key.
 * @throws Refusal, or the reason of `signal`.
 */
export async function ask(path, { as = "json", headers, signal, patienceMs = PATIENCE_MS, ...options } = {}) {
  for (;;) {
    const key = keyInUse();
    const patience = AbortSignal.timeout(patienceMs);
    try {
      const response = await fetch(path, {
        ...options,
        headers: { ...headers, ...(key && { "X-API-Key": key }) },
        signal: signal ? AbortSignal.any([signal, patience]) : patience,
      });
      if (response.ok) return { body: await response[as](), headers: response.headers };
      if (response.status !== 401) throw await refusalOf(response);
    } catch (error) {
      if (signal?.aborted || error instanceof Refusal) throw error;
      throw new Refusal(patience.aborted ? "silent" : (await isThere()) ? "cut" : "gone");
    }
    // Another key may have come while this request was on its way.
    if (keyInUse() === key) await (newKey ??= askForKey(key).finally(() => (newKey = null)));
    signal?.throwIfAborted();
  }
}

/** A refusal may be a proxy's, which knows nothing of our shape. */
async function refusalOf(response) {
  const { status, headers } = response;
  const { error, request_id: requestId } = await response.json().catch(() => ({}));
  const retryAfter = Number.parseFloat(headers.get("retry-after"));
  return new Refusal(error?.code ?? "other", { message: error?.message, status, retryAfter, requestId });
}

async function isThere() {
  const options = { cache: "no-store", signal: AbortSignal.timeout(2000) };
  return fetch("livez", options).then(() => true, () => false);
}

/** The key that requests carry now; null where none was needed yet. */
export function keyInUse() {
  return sessionStorage.getItem(KEY_PLACE);
}

/** Wait for another key than the one that was refused. */
async function askForKey(refused) {
  const [form, field] = [find("key"), find("key-text")];
  form.hidden = false;
  find("key-error").textContent = refused ? "This server does not know that key." : "";
  field.focus();
  await new Promise((resolve) => form.addEventListener("submit", resolve, { once: true }));
  sessionStorage.setItem(KEY_PLACE, field.value.trim());
  form.reset();
  form.hidden = true;
  find("choose").focus();
}
