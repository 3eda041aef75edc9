"""Runs the sections of `milkweed bench server` and puts their rows in one document."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...models.bundle import read_config
from ..http_overhead import make_jpeg, running_server, stage_cpu_seconds
from ..load.endpoints import target_of
from ..load.plan import Plan, Watch
from ..load.single import learned
from ..process import machine
from . import sections as rows_of
from .bodies import array_bodies, jpegs, pictures, shots
from .bundles import random_bundle, tiny_bundle
from .reloading import reloading
from .rolling import rolling
from .sections import Options
from .subject import Say, Subject

SECTIONS = ("capacity", "load", "overload", "malformed", "rolling", "reload", "soak")
USUAL = SECTIONS[:-1]
OWN = ("rolling", "reload")
"""Sections that start servers of their own."""
DEFAULT_OUT = Path("bench/results/server.json")

ANSWER = rb'"results": \[\{[^\[]*\[\{"index": (\d+)'
"""The first class of the first image."""

PHOTO_BYTES = 110_000

UNKNOWN_SIZE = 224
"""Pixels a side of arrays for a server that was not started here."""

ROLLING_LOAD = 0.3
"""Of the capacity: a start takes a core, as a model does that is loaded; all is answered meanwhile."""


@dataclass(frozen=True)
class Request:
    """What `run` is asked for.

    Args:
        bundle: to be served; None with neither `arch` nor `url` = the tiny ViT.
        arch: an architecture with random weights, made on the spot.
        url: of a server that runs already.
        sections: some of SECTIONS.
        bodies: kinds; every one has its capacity measured, the first serves the other sections. None = npy for
            models of less than 64 pixels a side, else raw.
        photos: folder of JPEGs; made ones where None.
        images: of a request.
        seconds: of a row.
        timeout_seconds: after which the client gives a request up, where a section says nothing else.
        settings: of the server, by field name.
        restarts, reloads: of the sections rolling and reload.
    """

    bundle: Path | None = None
    arch: str | None = None
    url: str | None = None
    sections: Sequence[str] = USUAL
    bodies: Sequence[str] | None = None
    photos: Path | None = None
    images: int = 1
    seconds: float = 10.0
    concurrency: int = 32
    clients: int = 1
    timeout_seconds: float = 10.0
    api_key: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 4
    reloads: int = 10
    watch: Watch = field(default_factory=Watch)
    options: Options = field(default_factory=Options)
    seed: int = 0


def usual(url: str | None) -> Sequence[str]:
    """The sections where none are named."""
    return [name for name in USUAL if not (url and name in OWN)]


def run(request: Request, say: Say = lambda row: None) -> dict[str, Any]:
    """Measure one server, started here or at a URL.

    Args:
        say: called with each row that is done.

    Raises:
        ValueError: a request that cannot be.
        RuntimeError: no start, or a good request that is refused by a server at rest.
    """
    for section in OWN:
        if request.url and section in request.sections:
            raise ValueError(f"section {section} starts servers of its own: it measures none at {request.url}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load_before = os.getloadavg()[0]
        if request.url:
            subject, *others = _subjects(request, request.url, (), UNKNOWN_SIZE, say)
            most = _measure(request, subject, others)
        else:
            bundle = _bundle(request, scratch / "bundle")
            size = read_config(bundle).preprocess["size"]
            with running_server(bundle, request.settings) as (process, url):
                subject, *others = _subjects(request, url, (process.pid,), size, say)
                for one in (subject, *others):
                    one.stages = partial(stage_cpu_seconds, url)
                most = _measure(request, subject, others)
            rate = min(request.options.rates or (ROLLING_LOAD * most,))
            if "reload" in request.sections:
                folder = scratch / "repository"
                reloading(subject, bundle, folder, request.settings, reloads=request.reloads, rate=rate)
            if "rolling" in request.sections:
                rolling(subject, bundle, request.settings, restarts=request.restarts, rate=rate, watch=request.watch)
    return _document(request, subject, most, load_before)


def _document(request: Request, subject: Subject, most: float, load_before: float) -> dict[str, Any]:
    return {
        "benchmark": "server",
        "version": version("milkweed"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "load_average_before": round(load_before, 2),
        "settings": _plain(request),
        "body": {"kind": subject.name, "bytes": len(subject.plan.shots[0].body), "images": request.images},
        "capacity": round(most, 1),
        "rows": subject.rows,
        "complaints": rows_of.no_row_failed(subject.rows),
    }


def _measure(request: Request, subject: Subject, others: Sequence[Subject]) -> float:
    """The sections on the one server; its capacity."""
    chosen, options = request.sections, request.options
    subject.warm_up()
    most = rows_of.capacity(subject, subject.name)
    if "capacity" in chosen:
        for other in others:
            other.warm_up()
            rows_of.capacity(other, other.name)
    if "load" in chosen:
        rows_of.load(subject, most, options)
    if "overload" in chosen:
        rows_of.overload(subject, most, options)
    if "malformed" in chosen:
        rows_of.malformed(subject, most, options)
    if "soak" in chosen:
        rows_of.soak(subject, most, options)
    return most


def _subjects(request: Request, url: str, pids: tuple[int, ...], size: int, say: Say) -> list[Subject]:
    """One for each kind of body, on the same server and with the same rows."""
    kinds = request.bodies or (("npy",) if size < 64 else ("raw",))
    headers = (("X-API-Key", request.api_key),) if request.api_key else ()
    photos = _photos(request.photos, size)
    found: list[Subject] = []
    for kind in kinds:
        encoded = array_bodies(pictures(size)) if kind == "npy" else photos
        plan = Plan(
            targets=(target_of(url),),
            path="/classify?top_k=1",
            shots=shots(kind, encoded, request.images),
            seconds=request.seconds,
            connections=request.concurrency,
            timeout_seconds=request.timeout_seconds,
            headers=headers,
            answer=ANSWER,
            seed=request.seed,
        )
        subject = Subject(kind, learned(plan), pids, request.clients, request.seconds, request.images, say)
        subject.rows = found[0].rows if found else subject.rows
        found.append(subject)
    return found


def _photos(folder: Path | None, size: int) -> list[bytes]:
    from ..bodies import photos

    if folder is not None:
        return photos(folder, 200)
    return jpegs(pictures(size)) if size < 64 else [make_jpeg(PHOTO_BYTES)]


def _bundle(request: Request, path: Path) -> Path:
    if request.bundle is not None:
        return request.bundle
    return random_bundle(path, request.arch) if request.arch else tiny_bundle(path)


def _plain(request: Request) -> dict[str, Any]:
    """As it is written down: no key, folders by name."""
    found = asdict(request) | {"api_key": bool(request.api_key)}
    return {name: value.name if isinstance(value, Path) else value for name, value in found.items()}
