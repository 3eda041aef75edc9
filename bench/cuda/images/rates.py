"""Images a second and latencies of whole batches, what matters most first, until the time is used up."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import quantiles
from typing import Any

from ....loaders.decode.dali_graph import Resample
from .peers import Load, peers
from .subject import ImageReport, Subject

LEAST_CALLS, WARM_UP_CALLS = 3, 2

_BATCHES, _THREADS, _LOADS = (64, 1, 16, 256, 4), (8, 16, 2), (0.0, 1.0, 0.65)
"""Batches, threads and loads, in the order in which they matter."""


@dataclass(frozen=True)
class Rate:
    """One way at one batch size. CPU time is the process's, for an image; a note says why a row has no figures."""

    what: str
    way: str
    batch: int
    images_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms_per_image: float | None = None
    calls: int = 0
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"  {self.what:12} {self.way:44} {self.batch:5}"
        if self.images_per_second is None:
            return f"{head}  {self.note}"
        return (
            f"{head} {self.images_per_second:10.0f} {self.p50_ms:9.2f} {self.p99_ms:9.2f} {self.cpu_ms_per_image:8.3f}"
        )


HEAD = f"  {'photos':12} {'way':44} {'batch':>5} {'images/s':>10} {'p50 ms':>9} {'p99 ms':>9} {'CPU ms':>8}"


@dataclass(frozen=True)
class _Cell:
    """A row to come: what it is called and what makes it; the lower the rank, the earlier."""

    rank: int
    what: str
    way: str
    batch: int
    make: Callable[[], AbstractContextManager[Load]]


def measure_rates(subject: Subject, report: ImageReport) -> None:
    """Rows by rank; those that no time was left for are rows that say so."""
    print(HEAD, flush=True)
    for cell in sorted(_cells(subject), key=lambda cell: cell.rank):
        row = Rate(cell.what, cell.way, cell.batch, note="skipped: out of time")
        if subject.seconds_left() > 0:
            row = _measured(subject, cell)
            print(row, flush=True)
        report.rates.append(row.as_json())
        subject.keep()
    missed = sum(str(row["note"]).startswith("skipped") for row in report.rates)
    subject.say(f"{len(report.rates)} rows of rates, {missed} of them skipped: out of time")


def best_lines(rates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line a size and batch: the fastest of DALI's ways beside the fastest other one."""
    timed = [row for row in rates if row["images_per_second"]]
    for what, batch in dict.fromkeys((row["what"], row["batch"]) for row in sorted(timed, key=_size_and_batch)):
        here = [row for row in timed if (row["what"], row["batch"]) == (what, batch)]
        ours = max((row for row in here if row["way"].startswith("DALI")), key=_speed, default=None)
        other = max((row for row in here if not row["way"].startswith("DALI")), key=_speed, default=None)
        if ours is not None and other is not None:
            ratio = _speed(ours) / _speed(other)
            yield f"  {what:12} {batch:4}  {_short(ours)}; best other: {_short(other)}; {ratio:.2f}x"


def _size_and_batch(row: Mapping[str, Any]) -> tuple[str, int]:
    return str(row["what"]), int(row["batch"])


def _speed(row: Mapping[str, Any]) -> float:
    return float(row["images_per_second"])


def _short(row: Mapping[str, Any]) -> str:
    return f"{row['way']} {_speed(row):.0f}/s"


def rate(
    subject: Subject, load: Callable[[Sequence[bytes]], object], bodies: Sequence[bytes], batch: int, seconds: float
) -> Rate:
    """Time calls one after the other, each waited for, over batches that go round the bodies."""
    rounds = _batches(bodies, batch)
    for _ in range(WARM_UP_CALLS):
        load(next(rounds))
        subject.finish()
    took: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    while len(took) < LEAST_CALLS or time.perf_counter() - began < seconds:
        one = next(rounds)
        start = time.perf_counter()
        load(one)
        subject.finish()
        took.append((time.perf_counter() - start) * 1e3)
    images = len(took) * batch
    cuts = quantiles(took, n=100, method="inclusive")
    return Rate(
        "",
        "",
        batch,
        round(images / sum(took) * 1e3, 1),
        round(cuts[49], 3),
        round(cuts[98], 3),
        round((time.process_time() - cpu) / images * 1e3, 4),
        len(took),
    )


def _measured(subject: Subject, cell: _Cell) -> Rate:
    bodies = subject.sets[cell.what]
    try:
        with cell.make() as load:
            found = rate(subject, load, bodies, cell.batch, subject.scale.row_seconds)
    except Exception as error:  # a library that is missing, memory that is not there: a row that says so
        return Rate(cell.what, cell.way, cell.batch, note=f"{type(error).__name__}: {error}".splitlines()[0][:160])
    return Rate(**{**asdict(found), "what": cell.what, "way": cell.way})


def _cells(subject: Subject) -> Iterator[_Cell]:
    scale = subject.scale
    for what, batch in product(subject.sets, _ordered(_BATCHES, scale.batches)):
        first = _rank(_BATCHES, batch)
        for way, make in peers(subject).items():
            yield _Cell(first, what, way, batch, make)
        for threads, hw in product(_ordered(_THREADS, scale.threads), _ordered(_LOADS, scale.engine_loads)):
            rank = first + 2 * _rank(_THREADS, threads) + 2 * _rank(_LOADS, hw)
            yield _dali(subject, rank, what, batch, threads, hw, "exact")
        threads = _ordered(_THREADS, scale.threads)[0]
        yield _dali(subject, first + 2, what, batch, threads, 0.0, "fused")
        yield _dali(subject, first + 1, what, batch, threads, 0.0, "exact", strict=True)


def _dali(
    subject: Subject,
    rank: int,
    what: str,
    batch: int,
    threads: int,
    hw: float,
    resample: Resample,
    strict: bool = False,
) -> _Cell:
    make = partial(_dali_load, subject, hw, resample, threads, batch, strict)
    way = f"DALI {resample}{', strict' if strict else ''}, hw {hw:g}, {threads} threads"
    return _Cell(rank, what, way, batch, make)


@contextmanager
def _dali_load(
    subject: Subject, hw: float, resample: Resample, threads: int, batch: int, strict: bool
) -> Iterator[Load]:
    loader = subject.dali(hw, resample, threads, batch, strict)
    yield lambda bodies: loader.load(bodies).pixels
    loader.close()


def _ordered(order: Sequence[float], wanted: Sequence[Any]) -> list[Any]:
    """Sort what is wanted: what matters most comes first, what is unknown last."""
    return sorted(wanted, key=lambda one: _rank(order, one))


def _rank(order: Sequence[float], one: float) -> int:
    return list(order).index(one) if one in order else len(order)


def _batches(bodies: Sequence[bytes], batch: int) -> Iterator[list[bytes]]:
    """Batches that go round and round."""
    at = 0
    while True:
        yield [bodies[(at + place) % len(bodies)] for place in range(batch)]
        at = (at + batch) % len(bodies)
