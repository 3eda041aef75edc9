"""What `milkweed bench server` is asked to do: plain data, written down with the results."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..load.plan import Plan, Shot, Watch, target_of

SECTIONS = ("capacity", "load", "overload", "malformed", "rolling", "reload", "soak")
OWN = ("rolling", "reload")  # sections that start servers of their own
ANSWER = rb'"results": \[\{[^\[]*\[\{"index": (\d+)'  # the first class of the first image


@dataclass(frozen=True)
class Request:
    """What is measured, and how; the rest is as the options of the command say.

    Args:
        bundle: to be served; None with neither `arch` nor `url` = the tiny ViT.
        arch: an architecture with random weights, made on the spot.
        url: of a server that runs already.
        bodies: kinds; every one has its capacity measured, the first serves the other sections. None = npy for
            models of less than 64 pixels a side, else raw.
        settings: of the server, by field name.
        timeout_seconds: after which the client gives a request up, where a section says nothing else.
        loads: of the open-loop rows, as shares of the capacity.
        rates: of the load section and, one of them, of rolling, reload and soak, requests a second; instead of loads.
        overload: as a multiple of the capacity.
    """

    bundle: Path | None = None
    arch: str | None = None
    url: str | None = None
    api_key: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[str] = SECTIONS[:-1]
    bodies: Sequence[str] | None = None
    photos: Path | None = None
    images: int = 1
    seconds: float = 10.0
    concurrency: int = 32
    clients: int = 1
    timeout_seconds: float = 10.0
    arrivals: str = "poisson"
    loads: Sequence[float] = (0.3, 0.5, 0.8)
    rates: Sequence[float] = ()
    overload: float = 2.0
    overload_timeout_seconds: float = 0.5
    malformed_share: float = 0.09
    restarts: int = 4
    reloads: int = 10
    watch: Watch = field(default_factory=Watch)
    soak_minutes: float = 10.0

    def plan(self, url: str, shots: tuple[Shot, ...], path: str = "/classify?top_k=1", answer: bytes = ANSWER) -> Plan:
        """The plan that every row is a variation of."""
        return Plan(
            targets=(target_of(url),),
            path=path,
            shots=shots,
            seconds=self.seconds,
            arrivals=self.arrivals,
            connections=self.concurrency,
            timeout_seconds=self.timeout_seconds,
            headers=(("X-API-Key", self.api_key),) if self.api_key else (),
            answer=answer,
        )

    def document(self) -> dict[str, Any]:
        """The JSON of it: no key, folders by name."""
        found = asdict(self) | {"api_key": bool(self.api_key)}
        return {name: value.name if isinstance(value, Path) else value for name, value in found.items()}


def usual_sections(url: str | None) -> Sequence[str]:
    """The sections where none are named."""
    return [name for name in SECTIONS[:-1] if not (url and name in OWN)]
