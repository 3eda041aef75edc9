"""Words and figures for a person, the same on the page and in the terminal: units, layers, chance."""

from collections.abc import Sequence
from math import hypot, sqrt

from .document import LayerRow, Measured

MISSING = "–"
"""Is written where nothing was measured."""


def compact(count: float) -> str:
    """A count with three digits: 937, 147 k, 5.72 M, 1.26 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # 999,600 is 1.00 M, not 1000 k.
        if abs(count) >= 0.9995 * size:
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f}"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 147, 58.2, 5.72, 0.412, 0.0031."""
    size = abs(value)
    if size >= 9.995:
        return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def optional(value: float | None) -> str:
    """Three digits, or the sign that nothing was measured."""
    return MISSING if value is None else three_digits(value)


def percent(value: float | None) -> str:
    """A share that is given in percent: `62.5 %`."""
    return MISSING if value is None else f"{value:.1f} %"


def share(part: float, whole: float) -> str:
    """`part` in percent of `whole`."""
    return MISSING if whole == 0 else percent(100 * part / whole)


def size(count: float) -> str:
    """Bytes in decimal units: 22.9 MB."""
    text = compact(count)
    return f"{text}B" if text[-1] in "GMk" else f"{text} B"


def points(value: float) -> str:
    """A difference of percentages with its sign; the minus is a true one."""
    text = f"{abs(value):.1f}"
    if float(text) == 0:
        return "±0.0"
    return f"{'−' if value < 0 else '+'}{text}"


def duration(seconds: float) -> str:
    """A time in at most two units: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 image`, `250 images`, `10,000 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def before_arrow(before: str, after: str) -> str:
    """`before` as it is written left of an arrow: without its unit if `after` has the same one."""
    number, _, unit = before.rpartition(" ")
    return number if number and after.endswith(f" {unit}") else before


def structure_text(row: LayerRow) -> str:
    """The structure that a layer has now, in a few words: `monarch, 2 blocks, rank 96`."""
    blocks = f", {counted(row.nblocks, 'block')}" if row.nblocks is not None else ""
    rank = f", rank {row.rank}" if row.rank is not None else ""
    return f"{row.kind}{blocks}{rank}"


def kept_dense(rows: Sequence[LayerRow]) -> dict[str, list[str]]:
    """Names of the layers that were kept dense, by the reason."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        if row.kind == "dense":
            kept.setdefault(row.reason or "no reason on record", []).append(row.name)
    return kept


def sampling_error(percent: float, images: int) -> float:
    """One standard deviation, in points, of a share counted on `images` images (binomial)."""
    images = max(images, 1)
    # A share of 0 or 100 would give 0, which no finite sample can promise: half an image is taken off.
    share = min(max(percent / 100, 0.5 / images), 1 - 0.5 / images)
    return 100 * sqrt(share * (1 - share) / images)


def chance(percent: float, images: int) -> str:
    """What chance may have done to a share: `± 1.2 on 250 images`."""
    return f"± {sampling_error(percent, images):.1f} on {counted(images, 'image')}"


def accuracy_change(before: Measured | None, after: Measured | None) -> tuple[float, float] | None:
    """Top-1 after less before, in points, and one standard deviation of that difference.

    Both are measured on the same images, so only images on which one model is right and the other wrong move
    the difference, and on those the two answers differ: with the share a of equal answers known, the variance of
    one image is at most (1 - a) - difference^2. Without it the two are taken as independent, which is too much.
    `after.agreement` must be with the model of `before`.

    Returns:
        None where either top-1 is missing or was measured on another number of images.
    """
    if before is None or after is None or before.top1 is None or after.top1 is None:
        return None
    if before.images != after.images or after.images < 1:
        return None
    change, images = after.top1 - before.top1, after.images
    if after.agreement is None:
        return change, hypot(sampling_error(before.top1, images), sampling_error(after.top1, images))
    differing = max(1 - after.agreement / 100, abs(change) / 100)
    variance = max(differing - (change / 100) ** 2, 1 / images)
    return change, 100 * sqrt(variance / images)
