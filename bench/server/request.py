"""What `milkweed bench server` is asked to do: its options, plain data that is written down with the results."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ...cli.options import decimal_option, number_option, text_option
from ..load.plan import ARRIVALS, KINDS, Plan, Shot, Watch, target_of
from ..options import bundle_argument, list_option, numbers_option, pairs

SECTIONS = ("capacity", "load", "overload", "malformed", "rolling", "reload", "soak")
OWN = ("rolling", "reload")  # sections that start servers of their own
ANSWER = rb'"results": \[\{[^\[]*\[\{"index": (\d+)'  # the first class of the first image
USUAL = f"Some of {', '.join(SECTIONS)}; not given: all but soak."
BODY = "Some of raw, multipart, json, npy: the capacity of each; all else with the first."
STARTS = "When requests start: as of independent users, or evenly."
RATES = "Rates in requests a second instead; one for rolling, reload, soak."
DELAY = "Milliseconds until the client hears that a server is not ready."
OVERLOAD = "Rate of the section overload, as a multiple of the capacity."


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is measured, and how; each field is an option of the command.

    Args:
        body: kinds; every one has its capacity measured, the first serves the other sections. None = npy for
            models of less than 64 pixels a side, else raw.
        settings: of the server, NAME=VALUE each.
        timeout_ms: after which the client gives a request up, where a section says nothing else.
    """

    bundle: Annotated[
        Path | None, bundle_argument("Folder of the bundle; a tiny ViT of random weights if not given.")
    ] = None
    url: Annotated[
        str | None, text_option("URL", "Measure a server that runs already: no CPU, memory or restarts then.")
    ] = None
    arch: Annotated[str | None, text_option("NAME", "Serve this architecture with random weights.")] = None
    api_key: Annotated[str | None, text_option("KEY", "Key sent as X-API-Key.")] = None
    settings: Annotated[
        list[str] | None, text_option("NAME=VALUE", "Setting of the server that is started; repeatable.", "--set")
    ] = None
    sections: Annotated[Sequence[str] | None, list_option("--sections", USUAL, SECTIONS)] = None
    body: Annotated[Sequence[str] | None, list_option("--body", BODY, KINDS)] = None
    photos: Annotated[Path | None, text_option("DIR", "Folder of JPEGs to post; made ones if not given.")] = None
    images: Annotated[int, number_option("Images of one request.")] = 1
    seconds: Annotated[float, decimal_option("Seconds that each row is measured.", least=0.5)] = 10.0
    concurrency: Annotated[int, number_option("Connections that the search for the capacity begins with.")] = 32
    clients: Annotated[int, number_option("Processes that send; more where one cannot keep up.")] = 1
    arrivals: Annotated[str, text_option("|".join(ARRIVALS), STARTS)] = "poisson"
    loads: Annotated[
        Sequence[float], numbers_option("--loads", "Rates of the section load, as shares of the capacity.")
    ] = (0.3, 0.5, 0.8)
    rates: Annotated[Sequence[float] | None, numbers_option("--rates", RATES)] = None
    timeout_ms: Annotated[int, number_option("Milliseconds until the client gives up; overload has its own.")] = 10_000
    overload: Annotated[float, decimal_option(OVERLOAD, least=0.1)] = 2.0
    overload_timeout_ms: Annotated[int, number_option("Milliseconds until the client gives up in overload.")] = 500
    malformed: Annotated[float, decimal_option("Share of malformed requests among good ones, 0 to 1.")] = 0.09
    restarts: Annotated[int, number_option("Restarts in the section rolling.")] = 4
    reloads: Annotated[int, number_option("Reloads in the section reload.")] = 10
    endpoint_delay_ms: Annotated[int, number_option(DELAY, least=0)] = 400
    minutes: Annotated[float, decimal_option("Minutes of the section soak.", least=0.01)] = 10.0

    @property
    def measured(self) -> Sequence[str]:
        """The sections: those that were named, or all but the soak and what a server at a URL cannot have."""
        return self.sections or [name for name in SECTIONS[:-1] if not (self.url and name in OWN)]

    @property
    def server_settings(self) -> dict[str, Any]:
        """The settings of the server by field name."""
        return pairs("--set", self.settings)

    @property
    def watch(self) -> Watch:
        """How the client of restarts hears of them."""
        return Watch(delay_seconds=self.endpoint_delay_ms / 1e3)

    def plan(self, url: str, shots: tuple[Shot, ...], path: str = "/classify?top_k=1", answer: bytes = ANSWER) -> Plan:
        """The plan that every row is a variation of."""
        return Plan(
            targets=(target_of(url),),
            path=path,
            shots=shots,
            seconds=self.seconds,
            arrivals=self.arrivals,
            connections=self.concurrency,
            timeout_seconds=self.timeout_ms / 1e3,
            headers=(("X-API-Key", self.api_key),) if self.api_key else (),
            answer=answer,
        )

    def document(self) -> dict[str, Any]:
        """The JSON of it: no key, folders by name."""
        values = {field.name: getattr(self, field.name) for field in fields(Request)}
        values |= {"api_key": bool(self.api_key), "sections": list(self.measured)}
        return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}
