"""One bad image harms nobody: a batch of photographs against the same with bad ones among them, for any loader."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from ....loaders import PillowLoader, PreprocessSpec
from ...bodies import BAD_KINDS, baseline
from ...decode.tables import table
from .contract import Limit, Loads, codes, off

BATCH, BAD = 32, 8
GOAL = 2.5
"""A batch with bad ones takes at most so many times as long as a clean one."""


@dataclass(frozen=True)
class Isolation:
    """What became of a batch with bad images.

    Args:
        kind: of bad body.
        right_answers: good images whose pixels are within the loader's limit, of `good`.
        right_errors: bad ones with the reference's code, of `bad`.
        changed: good images whose pixels are not those of the clean batch to the bit.
        ratio, cpu_ratio: time of the batch over that of the clean one, medians of interleaved rounds.
    """

    loader: str
    kind: str
    good: int
    bad: int
    right_answers: int
    right_errors: int
    changed: int
    clean_ms: float
    ratio: float
    cpu_ratio: float

    @property
    def passed(self) -> bool:
        """Everybody got the right answer, in time."""
        return self.right_answers == self.good and self.right_errors == self.bad and self.ratio <= GOAL

    def as_json(self) -> dict[str, Any]:
        """Plain data with the verdict."""
        return {**asdict(self), "passed": self.passed}


def isolation(
    loaders: Mapping[str, tuple[Loads, Limit]], photos: Sequence[bytes], spec: PreprocessSpec, rounds: int = 7
) -> list[Isolation]:
    """Rows: each loader with each kind of bad body.

    Args:
        loaders: by name, and how far from the reference their pixels may be.
        photos: JPEGs; BATCH of them are used, again and again where there are fewer.
        rounds: timed, clean and bad batches taking turns.

    Raises:
        ValueError: no baseline JPEG among the photos: progressive ones are spoilt in other ways.
    """
    clean = baseline(photos)
    if not clean:
        raise ValueError(f"none of {len(photos)} photographs is a baseline JPEG of one scan")
    clean = [clean[place % len(clean)] for place in range(BATCH)]
    batches = {kind: spoilt(clean, kind, spec) for kind in BAD_KINDS}
    wanted = {kind: codes(PillowLoader(spec), batch, spec.size) for kind, batch in batches.items()}
    rows: list[Isolation] = []
    for name, (loader, limit) in loaders.items():
        alone, _ = codes(loader, clean, spec.size)
        took = _timed(loader, {"": clean, **batches}, rounds)
        for kind, batch in batches.items():
            found = codes(loader, batch, spec.size)
            rows.append(_row(name, kind, limit, spec, alone, found, wanted[kind], took))
    return rows


def spoilt(clean: Sequence[bytes], kind: str, spec: PreprocessSpec) -> list[bytes]:
    """The batch with every fourth body spoilt, so that the reference refuses it (a damaged scan can still be one)."""
    reference, batch = PillowLoader(spec), list(clean)
    for number, place in enumerate(range(3, BATCH, BATCH // BAD)):
        for attempt in range(16):
            batch[place] = BAD_KINDS[kind](clean[place], number + BAD * attempt)
            if codes(reference, [batch[place]], spec.size)[1] != ["ok"]:
                break
    return batch


def _row(
    name: str,
    kind: str,
    limit: Limit,
    spec: PreprocessSpec,
    alone: Tensor,
    answered: tuple[Tensor, list[str]],
    wanted: tuple[Tensor, list[str]],
    took: dict[str, tuple[float, float]],
) -> Isolation:
    (pixels, found), (truth, expected) = answered, wanted
    good = [place for place, code in enumerate(expected) if code == "ok"]
    levels = off(pixels, truth, spec)
    right = [place for place in good if limit.holds(float(levels[place].mean()), float(levels[place].max()))]
    return Isolation(
        name,
        kind,
        good=len(good),
        bad=len(expected) - len(good),
        right_answers=len(right),
        right_errors=sum(found[at] == code for at, code in enumerate(expected) if code != "ok"),
        changed=sum(not torch.equal(pixels[place], alone[place]) for place in good),
        clean_ms=round(took[""][0] * 1e3, 2),
        ratio=round(took[kind][0] / took[""][0], 3),
        cpu_ratio=round(took[kind][1] / took[""][1], 3),
    )


def _timed(loader: Loads, batches: Mapping[str, list[bytes]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of each batch, the batches taking turns."""
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in batches}
    for _ in range(rounds):
        for kind, batch in batches.items():
            taken[kind].append(clocked(lambda batch=batch: loader.load(batch)))  # type: ignore[misc]
    return {kind: (median(wall for wall, _ in pairs), median(cpu for _, cpu in pairs)) for kind, pairs in taken.items()}


def clocked(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of a call; on a GPU until all that it queued is done."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def isolation_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for people."""
    return table(
        f"one bad image harms nobody: times as long as a clean batch, goal {GOAL:g}",
        ("loader", "bad images", " answers", " errors", " changed", " clean ms", " times", " CPU", ""),
        [
            (
                row["loader"],
                row["kind"],
                f"{row['right_answers']}/{row['good']}",
                f"{row['right_errors']}/{row['bad']}",
                row["changed"],
                row["clean_ms"],
                row["ratio"],
                row["cpu_ratio"],
                "PASS" if row["passed"] else "FAIL",
            )
            for row in rows
        ],
    )
