// What the page asks of its server: always relative to the page, so that a path prefix of a proxy stays.

import { keyInUse, newKey } from "./key.js";

const PATIENCE_MS = 10_000;

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
