"""Rows of the whole service: one image over HTTP, images a second beside those of its parts, memory over many images.

The server is the one that people start, a process of its own on loopback. It serves a ViT-B of random weights whose
linear layers are all Monarch, on the impls that the rows of MLPs and attention showed to be the best, and gets JPEGs of
the usual size. The same bundle, opened in this process, says how fast the parts of the way are.
"""

import atexit
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from ...inference.decode_stage import DecodedBatch
from ...inference.open import open_model
from ...inference.options import InferenceOptions
from ...inference.pipeline import Pipeline
from ...kernels.impls.quarantine import VARIABLE, quarantined
from ..bodies import made_jpegs, photos
from ..load.connection import learned
from ..load.plan import Shot
from ..load.requests import shots
from ..process import running_server
from ..server.benched_server import BenchedServer
from ..server.bundles import random_bundle, tiny_bundle
from ..server.request import Request
from ..server.sections import capacity, no_row_failed
from ..turns import in_turns, medians
from .device import device_for, memory_used
from .forward import monarch_model
from .journal import Record, round_of
from .measure import bench_of
from .plan import ALL, Task

PHOTOS = 200


class Scale(NamedTuple):
    """How much is measured."""

    arch: str | None = "vit_base_patch16_224"  # None for a tiny ViT
    batch: int = 64  # images of a forward at most
    connections: int = 64  # that post at once, at first
    clients: int = 4  # processes that post
    seconds: float = 4.0  # of a row of load, and of timing parts
    images: int = 100_000  # answered between two looks at the memory
    max_seconds: float = 120.0  # that they may take


DRY = Scale(None, batch=4, connections=16, clients=1, seconds=0.3, images=100)


def served(task: Task, unit: str) -> Iterator[Record]:
    """Measure a round; one server serves all of them.

    Raises:
        ImportError: it needs a package that is not here.
    """
    import_module("milkweed.server.process.serve")  # the server's process would only say that it did not start
    service = started(task)
    yield from service.latency()
    yield from service.throughput()
    if round_of(unit) == 1:  # memory over many images takes the longest, and is no matter of noise
        yield from service.memory()


@cache
def started(task: Task) -> "Service":
    """Start a server and open the same bundle here, both until this process ends.

    Raises:
        RuntimeError: the server does not start.
    """
    scale, bench, opened = DRY if task.dry_run else Scale(), bench_of(task), ExitStack()
    atexit.register(opened.close)
    bodies = photos(Path(task.photos), PHOTOS) if task.photos else made_jpegs(12)
    kept = {impl.name for impl in bench.proven()}
    others = [impl.name for impl in bench.impls if impl.name not in kept]
    os.environ[VARIABLE] = ",".join([*quarantined(), *others])  # or a start would time them all, for minutes
    options = InferenceOptions(device=bench.device.type, dtype=task.dtype, max_batch_size=scale.batch)
    settings = {name: getattr(options, name) for name in ("device", "dtype", "max_batch_size")}
    bundle = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "bundle"
    if scale.arch is None:
        tiny_bundle(bundle)
    else:
        random_bundle(bundle, scale.arch, monarch_model(scale.arch, ALL, bench.nblocks))
    pipeline = open_model(bundle, options).pipeline  # first: the server finds the plans of this
    opened.callback(pipeline.close)
    process, url = opened.enter_context(running_server(bundle, settings))
    request = Request(seconds=scale.seconds, clients=scale.clients, concurrency=scale.connections)
    plan = learned(request.plan(url, tuple(shot for shot in shots("raw", bodies) if shot.good)))
    benched = BenchedServer("milkweed", plan, request, process.pid)
    return Service(scale, task, bodies, pipeline, benched)


@dataclass
class Service:
    """A server of ours, the same bundle in this process, and what is posted."""

    scale: Scale
    task: Task
    bodies: list[bytes]
    pipeline: Pipeline
    benched: BenchedServer

    def latency(self) -> Iterator[Record]:
        """One connection that posts one JPEG after the other: from the first byte sent to the last of the answer."""
        alone = replace(self.benched, request=replace(self.benched.request, clients=1))  # each has one
        row = alone.row("latency", "1 connection", replace(self.benched.plan, connections=1))
        names = ("p50", "p99")
        figures = {f"{name}_ms": value for name, value in (row["latency_ms"] or {}).items() if name in names}
        yield self._row("one JPEG", figures, batch=1)

    def throughput(self) -> Iterator[Record]:
        """Images a second from JPEG to answer, and of decoding, forward and HTTP alone; the slowest is the limit."""
        parts = {**self._stages(), "ingest": self._ingest()}
        whole = capacity(self.benched)
        limit = min(parts, key=lambda name: parts[name])
        for name, rate in parts.items():
            yield self._row(name, {"images_per_second": round(rate, 1)})
        figures = {"images_per_second": whole, "of_the_limit": round(whole / parts[limit], 4)}
        yield self._row("end to end", figures, f"the limit is {limit}")

    def memory(self) -> Iterator[Record]:
        """Bytes of weights beside the dense model's; what the server and the GPU hold before and after many images."""
        weights, dense = self.pipeline.forward_stage.resident_bytes, self.pipeline.dense_bytes
        yield self._row("weights", {"weights_mb": round(weights / 1e6, 2), "of_dense": round(weights / dense, 4)})
        seconds = self.scale.max_seconds
        plan = replace(self.benched.plan, connections=4 * self.scale.connections, seconds=seconds)
        self.benched.row("memory", "before", replace(plan, requests=self.scale.images // 20))
        before = self._held()
        row = self.benched.row("memory", "after", replace(plan, requests=self.scale.images))
        gpu, host = (after - held for after, held in zip(self._held(), before, strict=True))
        answered = row["statuses"].get("200", 0)
        figures = {"images": answered, "gpu_growth_mb": round(gpu / 1e6, 2), "host_growth_mb": round(host / 1e6, 2)}
        note = f"{answered} images in {seconds:g} s, not {self.scale.images}"
        if answered >= self.scale.images:  # over fewer it shows less
            figures["growth_mb"], note = max(figures["gpu_growth_mb"], figures["host_growth_mb"]), ""
        yield self._row("growth", figures, note)

    def _stages(self) -> dict[str, float]:
        """Images a second of decoding and of the forward, as the server's pipeline has them, in turns."""
        bodies, size, pipeline = cycle(self.bodies), self.scale.batch, self.pipeline

        def decode() -> DecodedBatch:
            return pipeline.decode(list(islice(bodies, size)), [None] * size)

        decoded = decode()
        calls = {"decode": decode, "forward": lambda: pipeline.forward([decoded], [[1] * size])}
        spent = in_turns(calls, rounds=3, seconds=self.scale.seconds)
        return {name: 1e3 * size / medians(times)[0] for name, times in spent.items()}

    def _ingest(self) -> float:
        """Requests a second whose bodies, as long as the JPEGs, are read whole and refused by their first bytes."""
        noise = random.Random(0).randbytes(sum(map(len, self.bodies)) // len(self.bodies))
        plan = self.benched.plan
        refused = Shot(noise, "image/jpeg", good=False)
        plan = replace(plan, shots=(*plan.shots, refused), malformed_share=1.0, connections=2 * plan.connections)
        row = self.benched.row("ingest", "refused by the first bytes", plan)
        return float(row["answered"] / row["seconds"])

    def _held(self) -> tuple[int, int]:
        """Bytes of the GPU in use by everybody, and resident bytes of the server."""
        gpu = 0 if self.task.dry_run else memory_used(device_for(self.task))
        return gpu, round(self.benched.rss_mb() * 1e6)

    def _row(self, candidate: str, figures: dict[str, float], note: str = "", batch: int | None = None) -> Record:
        """Make a row; it is a failed check where the server did what it must never do since the last one."""
        complaints = no_row_failed(self.benched.rows)
        self.benched.rows.clear()
        where = {"what": self.scale.arch or "tiny ViT", "batch": batch or self.scale.batch, "candidate": candidate}
        said = "; ".join([*complaints, *filter(None, [note])])
        return {**where, "figures": figures, "passed": not complaints, "note": said}
