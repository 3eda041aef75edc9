"""Rows about decoding on the GPU: whether DALI is right there, whether bad files harm their neighbours, and its speed.

The rows that matter most come first. A bare machine needs pillow, simplejpeg and nvidia-dali; wheels unpacked into one
folder on PYTHONPATH will do. DALI's are nvidia-dali-cuda130, nvidia-nvimgcodec-cu13, nvidia-nvjpeg, nvtx, optree,
libcst, gast, astunparse and makefun, and the libraries of other Python versions in them may be deleted.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...loaders.errors import LoaderError
from ..machine import torch_threads
from ..turns import in_turns, medians

if TYPE_CHECKING:
    from .image_checks import Subject

CPU, EXACT, FUSED, ENGINE, STRICT = "cpu", "dali exact", "dali fused", "dali exact, hw 1", "dali exact, strict"
"""Our CPU loader, and DALI: two resize passes, one, the GPU's JPEG engine, coded data read on the CPU before."""

Row = Mapping[str, Any]


def image_rows(write: Callable[[dict[str, Any]], None], photos: Path | None, bad: Path | None, dry: bool) -> None:
    """Measure everything, and write each row when it exists.

    Args:
        photos: a folder of JPEGs; without it they are made.
        bad: a folder of bad files, which are tried beside those that are made of the photographs.
        dry: use the CPU, and little of everything; where DALI is missing, our CPU loader stands in for it.
    """
    # Loaders write from threads of their own, which are in no inference mode.
    with torch_threads(1), torch.inference_mode(False):
        for what, candidate, measure in _measures(photos, bad, dry):
            row = {"section": "images", "what": what, "candidate": candidate, "passed": None, "note": ""}
            try:
                found = measure()
            except Exception as error:  # the other rows must not miss their figures
                # What is missing leaves the row undecided; any other error is a failed check.
                missing = isinstance(error, (ImportError, LoaderError))
                if not missing:
                    traceback.print_exc()
                note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                write({**row, "passed": None if missing else False, "note": note})
            else:
                for values in found:
                    write({**row, **values})


def _measures(
    photos: Path | None, bad: Path | None, dry: bool
) -> Iterator[tuple[str, str, Callable[[], Sequence[Row]]]]:
    """Yield what is measured, of which candidate, and what returns the rows."""
    made: list[Subject] = []
    yield "photographs", "", lambda: _subject(made, photos, bad, dry)
    if not made:
        return
    from . import image_checks as checks

    subject = made[0]
    for name in (EXACT, FUSED, ENGINE):
        yield "equality with PillowLoader", name, partial(checks.equality, subject, name)
    for name in (EXACT, ENGINE, STRICT):
        for kind in subject.bad:
            yield f"bad files: {kind}", name, partial(checks.isolation, subject, name, kind)
    for name in (EXACT, ENGINE):
        yield "stream order", name, partial(checks.stream_order, subject, name)
    for what in ("sound", "lost"):
        yield f"memory over {what} batches", EXACT, partial(checks.memory, subject, EXACT, what == "lost")
    for size, bodies in subject.sets.items():
        for batch in subject.scale.batches:
            ready: list[str] = []
            for name in (CPU, EXACT, FUSED, ENGINE):
                yield f"rate, {size}", name, partial(_try, subject, ready, name, bodies[:batch])
            yield f"rate, {size}", "", partial(rates, subject, ready, bodies, batch)
    subject.close()


def _subject(made: "list[Subject]", photos: Path | None, bad: Path | None, dry: bool) -> Sequence[Row]:
    """Import what needs decoders only now: where they are missing, that is a row and not the end of the process."""
    from .image_checks import Subject

    made.append(Subject(photos, bad, dry))
    return []


def _try(subject: "Subject", ready: list[str], name: str, bodies: Sequence[bytes]) -> Sequence[Row]:
    """Load a batch: a candidate that cannot is found before the clock runs, and the others are timed without it."""
    _load(subject, name, iter(bodies), len(bodies))
    ready.append(name)
    return []


def rates(subject: "Subject", names: Sequence[str], bodies: Sequence[bytes], batch: int) -> Sequence[Row]:
    """Time whole batches, from bytes to pixels on the device, the candidates in turns; CPU time is the process's."""
    calls = {name: partial(_load, subject, name, cycle(bodies), batch) for name in names}
    spent = in_turns(calls, rounds=3, seconds=subject.scale.seconds) if calls else {}
    rows = []
    for name, calls_of in spent.items():
        wall, cpu = medians(calls_of)
        figures = {
            "images_per_second": round(1e3 * batch / wall, 1),
            "p50_ms": wall,
            "most_ms": round(max(calls_of)[0], 3),
        }
        figures |= {"cpu_ms_per_image": round(cpu / batch, 4), "calls": len(calls_of)}
        if CPU in spent:
            figures["over_cpu"] = round(medians(spent[CPU])[0] / wall, 3)
        rows.append({"candidate": name, "batch": batch, **figures})
    return rows


def _load(subject: "Subject", name: str, bodies: Iterator[bytes], batch: int) -> None:
    loaded = subject.loader(name).load(list(islice(bodies, batch)))
    torch.as_tensor(loaded.pixels).to(subject.device, non_blocking=True)
    subject.finish()
