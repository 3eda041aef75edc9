"""Rules and routes with shorter durations: what waits for minutes in the field waits for seconds on trial."""

import re

UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}

_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_TEXT = r"(?:\d+(?:ms|[smhdwy]))+"
_DURATION = re.compile(_TEXT)
# Of an alert or a group; a window, of a subquery with its step; an offset. A rule file has no others.
_IN_RULES = re.compile(
    rf"^ *(?:for|keep_firing_for|interval): *{_TEXT}|\[{_TEXT}(?::(?:{_TEXT})?)?\]|\boffset +-?{_TEXT}", re.MULTILINE
)
_IN_ROUTES = re.compile(rf"\b(?:group_wait|group_interval|repeat_interval|resolve_timeout): *{_TEXT}")


LEAST_WINDOW_MS = 3_000
"""A rate needs two scrapes, which come every second."""


def shortened_rules(text: str, factor: float) -> str:
    """A file of rules, every duration in it divided by `factor`, all else as it is to the byte.

    Windows stay long enough to hold scrapes, or as long as they are.

    Seconds that an expression compares a value with are no durations of the rule: they stay.
    """
    return _shortened(_IN_RULES, text, factor)


def shortened_routes(text: str, factor: float) -> str:
    """Alertmanager's configuration, what its routes wait for divided by `factor`."""
    return _shortened(_IN_ROUTES, text, factor)


def shortened(duration: str, factor: float, least_ms: int = 1) -> str:
    """One duration as Prometheus writes it, such as `1h30m`, divided by `factor`; not below `least_ms`."""
    whole_ms = sum(int(count) * UNITS_MS[unit] for count, unit in _PART.findall(duration))
    rest_ms = max(min(least_ms, whole_ms), round(whole_ms / factor))
    return f"{rest_ms}ms" if rest_ms % 1_000 else f"{rest_ms // 1_000}s"


def _shortened(places: re.Pattern[str], text: str, factor: float) -> str:
    if factor == 1:
        return text

    def shorter(place: re.Match[str]) -> str:
        least_ms = LEAST_WINDOW_MS if place[0].startswith("[") else 1
        return _DURATION.sub(lambda found: shortened(found[0], factor, least_ms), place[0])

    return places.sub(shorter, text)
