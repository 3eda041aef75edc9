"""Rows about decoding on the GPU: whether DALI is right there, whether bad files harm their neighbours, and its speed.

Differences are in levels 0..255, before normalisation.
"""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...loaders import CpuLoader, Loader, PillowLoader
from ...loaders.errors import LoaderError
from ..bodies import BAD_KINDS, SILENT_KINDS, baseline, enlarged, made_jpegs, photos, without_tables
from ..decode.methods import SPEC, dali
from ..machine import quiet_stderr, torch_threads
from ..turns import in_turns, medians
from .device import device_for, memory_used
from .journal import Absent, Record, one_line
from .plan import CPU, ENGINE, EXACT, FUSED, STRICT, Task

OPTIONS: dict[str, dict[str, Any]] = {
    EXACT: {"resample": "exact", "strict": False},
    FUSED: {"resample": "fused", "strict": False},
    ENGINE: {"resample": "exact", "strict": False, "hw_decoder_load": 1.0},
    STRICT: {"resample": "exact"},
}

EVERY = 4
"""Every fourth image of a batch is bad."""

MAX_BATCH = 256

LIMITS = {EXACT: (0.15, 8.0), FUSED: (0.3, 32.0), ENGINE: (0.15, 8.0)}
"""An image's mean and a pixel may be so far from the reference: the contract of docs/images.md."""

ROUNDING = 1e-3
"""Levels; a normalised pixel is a float32."""

GROWTH_BYTES = 64 << 20
"""Memory may grow by so much between two looks at it."""

BUSY_CYCLES = 150_000_000
"""A GPU's clock cycles of work that is queued before a decode: 0.1 s at 1.5 GHz."""

NOT_A_NUMBER = 1e6
"""Levels that stand for an infinite difference."""


def images(task: Task, unit: str) -> Iterator[Record]:
    """Measure a check of a candidate, or the rates of all at a size of batch.

    Raises:
        Absent: DALI is missing or cannot be built; in a dry run our CPU loader stands in for it.
    """
    _, what, name = unit.split("/")
    bench, (check, _, kind) = decoding(task), what.partition(": ")
    with torch_threads(1):
        try:
            if check.startswith("rate, "):
                batch = min(int(name), bench.checked)
                for row in rates(bench, bench.sets[check.removeprefix("rate, ")], batch):
                    yield {"what": what, "batch": batch, "note": "", **row}
            else:
                row = isolation(bench, name, kind) if kind else CHECKS[check](bench, name)
                yield {"what": what, "candidate": name, "note": "", **row}
        except LoaderError as error:
            raise Absent(f"LoaderError: {error}") from error


class Decoding:
    """Photographs, bad files, and loaders on one device.

    Attributes:
        checked, rounds: images of a batch that is checked, and how often it is loaded.
        seconds: for how long batches are timed.
        batch: photographs of a checked batch, some of them several times if there are few.

    Raises:
        ValueError: the folder has no JPEG of one scan.
    """

    def __init__(self, task: Task) -> None:
        self.dry, self.device = task.dry_run, device_for(task)
        limit, large, sides = (4, 1, (320, 240)) if self.dry else (200, 8, (4000, 3000))
        self.checked, self.rounds, self.seconds = (8, 2, 0.0) if self.dry else (32, 60, 4.0)
        made = photos(Path(task.photos), 2 * limit) if task.photos else made_jpegs(min(limit, 12))
        self.photos = baseline(made)[:limit]
        if not self.photos:
            raise ValueError(f"no JPEG of one scan in {task.photos}")
        self.bad = {kind: [spoil(self.photos[0], at) for at in range(8)] for kind, spoil in BAD_KINDS.items()}
        files = sorted(path for path in Path(task.bad).iterdir() if path.is_file()) if task.bad else []
        self.bad["of the folder"] = [path.read_bytes() for path in files[: 8 if self.dry else None]]
        phone = [enlarged(body, *sides, seed=at) for at, body in enumerate(islice(cycle(self.photos), large))]
        self.sets = {"photographs": self.photos, "4000x3000 px": phone}
        self.batch = list(islice(cycle(self.photos), self.checked))
        self.reference: Loader = PillowLoader(SPEC)
        self.loaders: dict[str, Loader] = {}

    def load(self, name: str, bodies: Sequence[bytes]) -> Tensor:
        """Return pixels on the device, on the current stream."""
        return torch.as_tensor(self.loader(name).load(bodies).pixels).to(self.device, non_blocking=True)

    def finish(self) -> None:
        """Wait for all that the device still has to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def load_whole(self, name: str, bodies: Sequence[bytes]) -> None:
        """Load, and wait for all that the device still has to do."""
        self.load(name, bodies)
        self.finish()

    def loader(self, name: str) -> Loader:
        """Return a candidate's loader, the same one each time; LoaderError where DALI is missing or cannot be built."""
        if name not in self.loaders:
            self.loaders[name] = self._made(name)
            atexit.register(self.loaders[name].close)
        return self.loaders[name]

    def _made(self, name: str) -> Loader:
        threads = min(16, os.cpu_count() or 1)
        kind: Literal["cpu", "gpu"] = "cpu" if self.dry else "gpu"
        options = {"max_batch": MAX_BATCH, "max_batch_pixels": MAX_BATCH * 20_000_000, **OPTIONS.get(name, {})}
        try:
            if name != CPU:
                return dali(num_threads=threads, device=kind, **options)
        except LoaderError:
            if not self.dry:
                raise
        return CpuLoader(SPEC, num_threads=threads, pin_memory=not self.dry)


decoding = cache(Decoding)
"""The one of a process."""


def equality(bench: Decoding, name: str) -> Record:
    """Compare pixels and refusals with the reference over all photographs; one level all over is no picture."""
    mean_limit, limit = LIMITS[name]
    means, largest, wrong, black = list[float](), 0.0, 0, 0
    bodies = [body for some in bench.sets.values() for body in some]
    for start in range(0, len(bodies), bench.checked):
        batch = bodies[start : start + bench.checked]
        pixels, errors = answers(bench.loader(name), batch)
        right, right_errors = answers(bench.reference, batch)
        wrong += sum(error != right_error for error, right_error in zip(errors, right_errors, strict=True))
        black += int((flat(pixels) & ~flat(right)).sum())
        levels = (pixels - right).abs() * torch.tensor(SPEC.std).view(3, 1, 1) * 255
        levels = levels.nan_to_num(nan=NOT_A_NUMBER, posinf=NOT_A_NUMBER)
        means += levels.mean((1, 2, 3)).tolist()
        largest = max(largest, float(levels.max()))
    near = max(means) <= mean_limit + ROUNDING and largest <= limit + ROUNDING
    levels_off = {"mean_levels": sum(means) / len(means), "worst_mean_levels": max(means), "max_levels": largest}
    figures: Record = {key: round(value, 4) for key, value in levels_off.items()}
    figures |= {"images": len(bodies), "limits": [mean_limit, limit], "wrong_status": wrong, "black": black}
    return {"figures": figures, "passed": near and not wrong and not black}


def isolation(bench: Decoding, name: str, kind: str) -> Record:
    """Put bad files among good ones: those have to keep their bits, and the bad ones to get the reference's error.

    Only a strict loader refuses the kinds of SILENT_KINDS; what another answers to them is counted and not judged.
    """
    loader, bad, changed, wrong = bench.loader(name), bench.bad[kind], 0, 0
    clean = bench.batch
    slots = range(EVERY - 1, len(clean), EVERY)
    good = [at for at in range(len(clean)) if at not in slots]
    batch = list(clean)
    with quiet_stderr():
        alone, _ = answers(loader, clean)
        for start in range(0, len(bad), len(slots)):
            batch[EVERY - 1 :: EVERY] = (bad[start:] + clean)[: len(slots)]
            pixels, errors = answers(loader, batch)
            _, expected = answers(bench.reference, batch)
            changed += sum(not torch.equal(pixels[at], alone[at]) for at in good)
            wrong += sum(error != right_error for error, right_error in zip(errors, expected, strict=True))
        calls = {"clean": partial(bench.load_whole, name, clean), "bad": partial(bench.load_whole, name, batch)}
        spent = in_turns(calls, 3, warm_up=0)
    silent = kind in SILENT_KINDS and name != STRICT
    times = round(medians(spent["bad"])[0] / medians(spent["clean"])[0], 3)
    figures = {"files": len(bad), "changed_neighbours": changed, "wrong_status": wrong, "times_a_clean_batch": times}
    return {"figures": figures, "passed": not changed and (silent or not wrong)}


def stream_order(bench: Decoding, name: str) -> Record:
    """Decode behind queued work, and read an earlier result meanwhile: both have to be what they are when alone."""
    half = max(1, min(bench.checked, len(bench.photos) // 2))
    batches = bench.photos[:half], bench.photos[half : 2 * half] or bench.photos[:half]
    alone = [bench.load(name, bodies).clone() for bodies in batches]
    bench.finish()
    keep_busy = (lambda: None) if bench.dry else partial(torch.cuda._sleep, BUSY_CYCLES)
    wrong = overwritten = 0
    for _ in range(bench.rounds):
        stream = None if bench.dry else torch.cuda.Stream(bench.device)
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            keep_busy()
            first = bench.load(name, batches[0])
            apart = [(first - alone[0]).abs().amax(), (bench.load(name, batches[1]) - alone[1]).abs().amax()]
            keep_busy()
            again = (first - alone[0]).abs().amax()  # queued; the memory may be reused before it has run
            del first
            apart.append((bench.load(name, batches[1]) - alone[1]).abs().amax())
            bench.finish()
        right = all(float(difference) <= ROUNDING / 255 for difference in apart)  # what is no number is not
        wrong += not right
        overwritten += right and not float(again) <= ROUNDING / 255
    figures = {"rounds": bench.rounds, "decoded_wrong": wrong, "overwritten": overwritten}
    return {"figures": figures, "passed": not wrong and not overwritten}


def memory(bench: Decoding, name: str, *, lost: bool) -> Record:
    """Look at the memory before and after many batches; `lost` ones have a body that no decoder accepts."""
    batch, used = list(bench.batch), []
    batch[-1:] = [without_tables(batch[0])] if lost else batch[-1:]
    with quiet_stderr():
        for _ in range(2):
            for _ in range(bench.rounds):
                bench.loader(name).load(batch)
            bench.finish()
            used.append(memory_used(bench.device))
    figures = {"batches": bench.rounds, "before_mib": used[0] >> 20, "after_mib": used[1] >> 20}
    return {"figures": figures, "passed": used[1] - used[0] <= GROWTH_BYTES}


CHECKS: dict[str, Callable[[Decoding, str], Record]] = {
    "equality with PillowLoader": equality,
    "stream order": stream_order,
    "memory over sound batches": partial(memory, lost=False),
    "memory over lost batches": partial(memory, lost=True),
}


def answers(loader: Loader, bodies: Sequence[bytes]) -> tuple[Tensor, list[str]]:
    """Return pixels (n, 3, S, S) on the CPU, NaN where there is an error, and "ok" or the error's code of each."""
    result = loader.load(bodies)
    pixels = torch.full((len(bodies), 3, SPEC.size, SPEC.size), float("nan"))
    pixels[result.ok] = torch.as_tensor(result.pixels).cpu().float()
    return pixels, [result.errors[at].code if at in result.errors else "ok" for at in range(len(bodies))]


def flat(pixels: Tensor) -> Tensor:
    """Return (n,), true where every channel has one value: what an engine that never ran leaves behind."""
    return (pixels.amax((2, 3)) == pixels.amin((2, 3))).all(1)


def rates(bench: Decoding, bodies: Sequence[bytes], batch: int) -> Iterator[Record]:
    """Time whole batches, from bytes to pixels on the device, the candidates in turns; CPU time is the process's.

    A candidate that cannot load a batch has a row that says so, and the others are timed without it.
    """
    calls: dict[str, Callable[[], None]] = {}

    def load(name: str, bodies: Iterator[bytes]) -> None:
        bench.load_whole(name, list(islice(bodies, batch)))

    for name in (CPU, EXACT, FUSED, ENGINE, STRICT):
        try:
            load(name, cycle(bodies))
            calls[name] = partial(load, name, cycle(bodies))
        except Exception as error:  # what is missing leaves the row undecided; any other error is a failed check
            missing = isinstance(error, (ImportError, LoaderError))
            yield {"candidate": name, "note": one_line(error), "passed": None if missing else False}
    spent = in_turns(calls, rounds=3, seconds=bench.seconds) if calls else {}
    for name, of_call in spent.items():
        wall, cpu = medians(of_call)
        figures: Record = {"images_per_second": round(1e3 * batch / wall, 1), "p50_ms": wall}
        figures |= {"most_ms": round(max(of_call)[0], 3), "cpu_ms_per_image": round(cpu / batch, 4)}
        figures["calls"] = len(of_call)
        if CPU in spent:
            figures["over_cpu"] = round(medians(spent[CPU])[0] / wall, 3)
        yield {"candidate": name, "figures": figures, "passed": None}
