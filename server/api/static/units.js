// Quantities as people read them.

/** Three digits, at most two of them behind the point. */
export function inDigits(value) {
  return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

export function inMs(ms) {
  return ms >= 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${inDigits(ms)} ms`;
}

export function inBytes(bytes) {
  const units = ["kB", "MB", "GB", "TB"];
  const unit = units.findLastIndex((_, power) => bytes >= 1000 ** (power + 1));
  return unit < 0 ? `${bytes} bytes` : `${inDigits(bytes / 1000 ** (unit + 1))} ${units[unit]}`;
}

/** A share as people read it; never 100 % where it is less. */
export function inPercent(share) {
  const percent = share < 1 ? Math.min(100 * share, 99.9) : 100 * share;
  const isRound = percent === 0 || (percent >= 10 && percent < 99) || percent >= 100;
  return `${percent.toFixed(isRound ? 0 : 1)} %`;
}

/** How many times as much. */
export function inTimes(times) {
  return times.toFixed(times < 9.95 ? 1 : 0);
}
