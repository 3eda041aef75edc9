"""Runs the sections of `milkweed bench server` and puts their rows in one document."""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from ...models.bundle.reading import read_config
from ..bodies import arrays, jpegs, make_jpeg, photos, pictures
from ..load.connection import learned
from ..load.requests import shots
from ..machine import about
from ..process import running_server, stage_cpu_seconds
from . import sections
from .benched_server import BenchedServer, OnRow
from .bundles import random_bundle, tiny_bundle
from .request import OWN, Request

DEFAULT_OUT = Path("bench/results/server.json")

PHOTO_BYTES = 110_000
MOST_PHOTOS = 200

UNKNOWN_SIZE = 224  # pixels a side of arrays for a server that was not started here
ROLLING_LOAD = 0.3  # of the capacity: a start takes a core, as a model does that is loaded; all is answered meanwhile


def run(request: Request, on_row: OnRow = lambda row: None) -> dict[str, Any]:
    """Measure one server, started here or at a URL.

    Args:
        on_row: called with each row that is done.

    Raises:
        ValueError: a request that cannot be.
        RuntimeError: no start, or a good request that is refused by a server at rest.
    """
    for section in OWN:
        if request.url and section in request.measured:
            raise ValueError(f"section {section} starts servers of its own: it measures none at {request.url}")
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as scratch:
        if request.url:
            servers = _benched(request, request.url, None, UNKNOWN_SIZE, on_row)
            most = _measure(servers)
        else:
            bundle = _bundle(request, Path(scratch, "bundle"))
            size = read_config(bundle).preprocess["size"]
            with running_server(bundle, request.server_settings) as (process, url):
                servers = _benched(request, url, process.pid, size, on_row)
                most = _measure(servers)
            rate = min(request.rates or (ROLLING_LOAD * most,))
            if "reload" in request.measured:
                sections.reloading(servers[0], bundle, Path(scratch, "repository"), rate)
            if "rolling" in request.measured:
                sections.rolling(servers[0], bundle, rate)
    server = servers[0]
    return {
        **about("server", load_before),
        "settings": request.document(),
        "body": {"kind": server.name, "bytes": len(server.plan.shots[0].body), "images": request.images},
        "capacity": round(most, 1),
        "rows": server.rows,
        "complaints": sections.no_row_failed(server.rows),
    }


def _measure(servers: list[BenchedServer]) -> float:
    """The sections on the one server; its capacity."""
    server, *others = servers
    chosen = server.request.measured
    server.warm_up()
    most = sections.capacity(server, server.name)
    for other in others if "capacity" in chosen else ():
        other.warm_up()
        sections.capacity(other, other.name)
    for section in (sections.load, sections.overload, sections.malformed, sections.soak):
        if section.__name__ in chosen:
            section(server, most)
    return most


def _benched(request: Request, url: str, pid: int | None, size: int, on_row: OnRow) -> list[BenchedServer]:
    """One for each kind of body, on the same server and with the same rows."""
    rows: list[dict[str, Any]] = []
    servers = []
    for kind in request.body or (("npy",) if size < 64 else ("raw",)):
        plan = learned(request.plan(url, shots(kind, _encoded(request, kind, size), request.images)))
        servers.append(
            BenchedServer(kind, plan, request, pid, on_row, rows, partial(stage_cpu_seconds, url) if pid else dict)
        )
    return servers


def _encoded(request: Request, kind: str, size: int) -> list[bytes]:
    """Images for a kind of body: photographs, or pictures of the size that a small model takes."""
    if kind == "npy":
        return arrays(pictures(size))
    if request.photos:
        return photos(request.photos, MOST_PHOTOS)
    return jpegs(pictures(size)) if size < 64 else [make_jpeg(PHOTO_BYTES)]


def _bundle(request: Request, path: Path) -> Path:
    if request.bundle is not None:
        return request.bundle
    return random_bundle(path, request.arch) if request.arch else tiny_bundle(path)
