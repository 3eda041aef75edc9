"""Our loaders on whole batches: images a second and CPU time, with one thread and two, and their equality contract."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from ...loaders import CpuLoader, Loader, LoadResult, PreprocessSpec
from ...loaders.dali_graph import Resample
from ..bodies import edge_cases, lossless_cases
from ..cuda.images.contract import LIMITS, Equality, equality
from ..cuda.images.graph_alone import GraphAlone
from .methods import MISSING, SPEC, Load, timm_transform, why

BATCHES, THREADS = (1, 8, 32), (1, 2)

_RESAMPLES: tuple[Resample, ...] = ("exact", "fused")


@dataclass(frozen=True)
class Batched:
    """One loader at one batch size; CPU time is the process's, DALI's own threads included."""

    loader: str
    batch: int
    threads: int
    cpu_ms_per_image: float
    cpu_ms_per_image_median: float
    images_per_second: float
    images_per_second_median: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def our_loaders(spec: PreprocessSpec, threads: int = 1) -> tuple[dict[str, Loader], dict[str, str]]:
    """Our loaders that can be made here, by their name in LIMITS, and why the others cannot."""
    makers: dict[str, Callable[[], Loader]] = {
        "cpu": lambda: CpuLoader(spec, num_threads=threads),
        "dali exact": lambda: _dali(spec, threads, "exact"),
        "dali fused": lambda: _dali(spec, threads, "fused"),
    }
    made, skipped = {}, {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except MISSING as error:
            skipped[name] = why(error)
    return made, skipped


def lenient_loaders(spec: PreprocessSpec) -> dict[str, Loader]:
    """DALI as it is on a GPU by default, where it meets bodies that break it; none where DALI is not here."""
    try:
        return {f"{name} lenient": _dali(spec, 1, name, strict=False) for name in _RESAMPLES}
    except MISSING:
        return {}


def batch_rows(
    bodies: Sequence[bytes], rounds: int, batches: Sequence[int] = BATCHES, threads: Sequence[int] = THREADS
) -> tuple[list[Batched], dict[str, str]]:
    """Rows, and the loaders that are not here; all cells take turns, round after round."""
    loaders: dict[tuple[str, int], Loader] = {}
    skipped: dict[str, str] = {}
    for count in threads:
        made, skipped = our_loaders(SPEC, count)
        loaders |= {(name, count): loader for name, loader in made.items()}
    cells = {(name, batch, count): loader for (name, count), loader in loaders.items() for batch in batches}
    taken: dict[tuple[str, int, int], list[tuple[float, float]]] = {cell: [] for cell in cells}
    for (_, batch, _), loader in cells.items():
        loader.load(bodies[:batch])
    for _ in range(rounds):
        for cell, loader in cells.items():
            taken[cell].append(_pass(loader, bodies, cell[1]))
    for loader in loaders.values():
        loader.close()
    return [_row(cell, pairs, len(bodies)) for cell, pairs in sorted(taken.items())], skipped


def equality_rows(photos: Mapping[str, bytes]) -> tuple[list[Equality], dict[str, str]]:
    """Every loader held against the reference: photographs, edge cases, lossless ramps and chequers."""
    rows: list[Equality] = []
    made, skipped = our_loaders(PreprocessSpec())
    sets = {"photographs": photos, "edge cases": edge_cases(), "lossless": lossless_cases()}
    try:
        timm = _Timm(timm_transform())
        rows += [_timm_row(timm, what, bodies) for what, bodies in sets.items()]
    except MISSING as error:
        skipped["timm"] = why(error)
    for name, loader in made.items():
        # A DALI loader hands PNGs on: there it is the graph alone whose crop is judged by them.
        alone = GraphAlone(PreprocessSpec(), "exact" if name == "dali exact" else "fused") if "dali" in name else loader
        for what, bodies in sets.items():
            judged = alone if what == "lossless" else loader
            rows.append(equality(judged, name, what, bodies, PreprocessSpec(), LIMITS[name]))
        loader.close()
    return rows, skipped


class _Timm:
    """timm's transform, answering like a loader."""

    def __init__(self, transform: Load) -> None:
        self._transform = transform

    def load(self, items: Sequence[bytes], /) -> LoadResult:
        """Pixels of all; what cannot be read raises."""
        return LoadResult(torch.stack([self._transform(body) for body in items]), list(range(len(items))), {})


def _timm_row(timm: _Timm, what: str, bodies: Mapping[str, bytes]) -> Equality:
    return equality(timm, "timm", what, bodies, SPEC, LIMITS["timm"])


def _dali(spec: PreprocessSpec, threads: int, resample: Resample, *, strict: bool = True) -> Loader:
    from ...loaders.dali_loader import DaliLoader

    return DaliLoader(spec, num_threads=threads, resample=resample, max_batch=max(BATCHES), strict=strict)


def _pass(loader: Loader, bodies: Sequence[bytes], batch: int) -> tuple[float, float]:
    """CPU and wall seconds of all bodies, `batch` at a time."""
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(bodies), batch):
        loader.load(bodies[start : start + batch])
    return time.process_time() - cpu, time.perf_counter() - wall


def _row(cell: tuple[str, int, int], pairs: Sequence[tuple[float, float]], count: int) -> Batched:
    cpu, wall = zip(*pairs, strict=True)
    return Batched(
        *cell,
        cpu_ms_per_image=round(min(cpu) / count * 1e3, 3),
        cpu_ms_per_image_median=round(median(cpu) / count * 1e3, 3),
        images_per_second=round(count / min(wall), 1),
        images_per_second_median=round(count / median(wall), 1),
    )
