// Quantities as people read them.

/** Milliseconds as people read them. */
export function inMs(ms) {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
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

/** How many times as much as people read it. */
export function inTimes(times) {
  return times.toFixed(times < 9.95 ? 1 : 0);
}
