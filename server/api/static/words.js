// What went wrong, in words.

import { Refusal } from "./server.js";

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

/** Bytes as people read them. */
export function inBytes(bytes) {
  const steps = ["bytes", "kB", "MB", "GB", "TB"];
  let place = 0;
  for (; bytes >= 1000 && place < steps.length - 1; place++) bytes /= 1000;
  return `${place === 0 ? bytes : bytes.toFixed(bytes < 10 ? 2 : bytes < 100 ? 1 : 0)} ${steps[place]}`;
}

/** A share as people read it; never 100 % where it is less. */
export function inPercent(share) {
  const percent = share * 100;
  if (percent >= 99.95 && share < 1) return "99.9 %";
  return `${percent >= 10 || percent === 0 ? percent.toFixed(percent >= 99 && share < 1 ? 1 : 0) : percent.toFixed(1)} %`;
}

function tooLarge(message, file) {
  const limit = /limit (?:is )?(\d+)/.exec(message);
  if (!limit) return "This file is larger than the server takes.";
  return `This file is too large: it has ${inBytes(file.size)}, the limit is ${inBytes(Number(limit[1]))}.`;
}
