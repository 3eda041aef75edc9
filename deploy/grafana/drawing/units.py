"""Numbers as Grafana writes them, for the units that the dashboards use."""

import math
from collections.abc import Sequence

_SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "hour"))
_BYTES = tuple((float(1024**power), name) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB")))
_THOUSANDS = ((1.0, ""), (1e3, " K"), (1e6, " Mil"), (1e9, " Bil"))
_BEHIND = {"reqps": " req/s", "watt": " W", "percent": "%", "none": "", "short": ""}


def written(value: float, unit: str) -> str:
    """A value with its unit."""
    if not math.isfinite(value):
        return "-"
    if unit == "s":
        return _scaled(value, _SECONDS)
    if unit == "bytes":
        return _scaled(value, _BYTES)
    if unit == "mbytes":
        return _scaled(value * 1024**2, _BYTES)
    if unit == "percentunit":
        return f"{_short(value * 100)}%"
    if unit == "short":
        return _scaled(value, _THOUSANDS, between="")
    if unit.startswith("suffix:"):
        return f"{_short(value)} {unit.removeprefix('suffix:').strip()}"
    return f"{_short(value)}{_BEHIND[unit]}"


def _scaled(value: float, scale: Sequence[tuple[float, str]], between: str = " ") -> str:
    fitting = [each for each in scale if abs(value) >= each[0]] if value else []
    factor, name = fitting[-1] if fitting else next((each for each in scale if each[0] == 1.0), scale[0])
    if value and not fitting:
        factor, name = scale[0]
    return f"{_short(value / factor)}{between}{name}"


def _short(value: float) -> str:
    """Three digits that count, no zeros behind the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
