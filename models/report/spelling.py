"""How figures are written for a person: short, with units, the same on the page and in the terminal."""

MISSING = "–"
"""Stands where nothing was measured."""


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
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share given in percent: `62.5 %`."""
    return MISSING if value is None else f"{value:.{digits}f} %"


def share(part: float, whole: float) -> str:
    """`part` in percent of `whole`."""
    return MISSING if whole == 0 else percent(100 * part / whole)


def size(count: float) -> str:
    """Bytes in decimal units: 22.9 MB."""
    text = compact(count)
    return f"{text}B" if text[-1] in "GMk" else f"{text} B"


def points(value: float) -> str:
    """A difference of percentages with its sign, a true minus."""
    text = f"{abs(value):.1f}"
    if float(text) == 0:
        return "±0.0"
    return f"{'−' if value < 0 else '+'}{text}"


def optional(value: float | None) -> str:
    """Three digits, or the sign for nothing measured."""
    return MISSING if value is None else three_digits(value)


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def before_arrow(before: str, after: str) -> str:
    """`before` as it stands left of an arrow: without its unit if that is also the unit of `after`."""
    number, _, unit = before.rpartition(" ")
    return number if number and after.endswith(f" {unit}") else before


def counted(count: int, noun: str) -> str:
    """`1 image`, `250 images`, `10,000 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
