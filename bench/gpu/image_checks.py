"""Checks of a loader on the GPU: pixels against the reference, bad files, stream order, memory; each returns its row.

Differences are in levels 0..255, before normalisation.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...loaders import CpuLoader, Loader, PillowLoader
from ...loaders.errors import LoaderError
from ..bodies import BAD_KINDS, SILENT_KINDS, baseline, enlarged, made_jpegs, photos, without_tables
from ..decode.methods import SPEC, dali
from ..machine import quiet_stderr
from ..turns import in_turns, medians
from .images import CPU, ENGINE, EXACT, FUSED, STRICT
from .rows.device import memory_used

EVERY = 4
"""Every fourth image of a batch is bad."""

MAX_BATCH = 256

LIMITS = {EXACT: (0.15, 8.0), FUSED: (0.3, 32.0), ENGINE: (0.15, 8.0)}
"""An image's mean and a pixel may be so far from the reference with DALI on the CPU: the contract of docs/images.md."""

GPU_LIMIT = (1.0, 48.0)
"""The same on a GPU. It is a proposal: no GPU has been measured yet."""

ROUNDING = 1e-3
"""Levels; a normalised pixel is a float32."""

GROWTH_BYTES = 64 << 20
"""Memory may grow by so much between two looks at it."""

BUSY_CYCLES = 150_000_000
"""A GPU's clock cycles of work that is queued before a decode: 0.1 s at 1.5 GHz."""

_NOT_A_NUMBER = 1e6  # levels; JSON has no infinity
_OPTIONS: dict[str, dict[str, Any]] = {
    EXACT: {"resample": "exact", "strict": False},
    FUSED: {"resample": "fused", "strict": False},
    ENGINE: {"resample": "exact", "strict": False, "hw_decoder_load": 1.0},
    STRICT: {"resample": "exact"},
}

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scale:
    """How much is measured: photographs, enlarged ones and their sides; images of a batch that is checked, and rounds
    of it; sizes of batches that are timed, and the seconds for each."""

    photos: int = 200
    large: int = 8
    large_px: tuple[int, int] = (4000, 3000)
    batch: int = 32
    rounds: int = 60
    batches: tuple[int, ...] = (64, 1, 16, MAX_BATCH)
    seconds: float = 4.0


DRY = Scale(photos=4, large=1, large_px=(320, 240), batch=8, rounds=2, batches=(2, 1), seconds=0.0)


class Subject:
    """Photographs, bad files, and loaders on one device; the arguments are those of `image_rows`.

    Raises:
        ValueError: the folder has no JPEG of one scan.
    """

    def __init__(self, folder: Path | None, bad: Path | None, dry: bool) -> None:
        self.dry, self.scale = dry, DRY if dry else Scale()
        self.device = torch.device("cpu") if dry else torch.device("cuda", torch.cuda.current_device())
        most = self.scale.photos
        self.photos = baseline(photos(folder, 2 * most) if folder else made_jpegs(min(most, 12)))[:most]
        if not self.photos:
            raise ValueError(f"no JPEG of one scan in {folder}")
        self.bad = {kind: [spoil(self.photos[0], at) for at in range(8)] for kind, spoil in BAD_KINDS.items()}
        if bad is not None and (files := sorted(path for path in bad.iterdir() if path.is_file())):
            self.bad["of the folder"] = [path.read_bytes() for path in files[: 8 if dry else None]]
        sources = [self.photos[at % len(self.photos)] for at in range(self.scale.large)]
        large = [enlarged(body, *self.scale.large_px, seed=at) for at, body in enumerate(sources)]
        self.sets = {"photographs": self.photos, "{}x{} px".format(*self.scale.large_px): large}
        self.reference: Loader = PillowLoader(SPEC)
        self._loaders: dict[str, Loader] = {}

    def loader(self, name: str) -> Loader:
        """Return a candidate's loader, the same one each time; LoaderError where DALI is missing or cannot be built."""
        if name not in self._loaders:
            self._loaders[name] = self._made(name)
        return self._loaders[name]

    def batch(self) -> list[bytes]:
        """Return as many photographs as a checked batch has, some of them several times if there are few."""
        return [self.photos[at % len(self.photos)] for at in range(self.scale.batch)]

    def finish(self) -> None:
        """Wait for all that the device still has to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """End the loaders' threads and free their memory."""
        for loader in self._loaders.values():
            loader.close()

    def _made(self, name: str) -> Loader:
        threads = min(16, os.cpu_count() or 1)
        kind: Literal["cpu", "gpu"] = "cpu" if self.dry else "gpu"
        options = {"max_batch": MAX_BATCH, "max_batch_pixels": MAX_BATCH * 20_000_000, **_OPTIONS.get(name, {})}
        try:
            if name != CPU:
                return dali(num_threads=threads, device=kind, **options)
        except LoaderError:
            if not self.dry:
                raise
        return CpuLoader(SPEC, num_threads=threads, pin_memory=not self.dry)


def equality(subject: Subject, name: str) -> Rows:
    """Compare pixels and refusals with the reference over all photographs; one level all over is no picture."""
    mean_limit, limit = LIMITS[name] if subject.dry else GPU_LIMIT
    means: list[float] = []
    size, largest, wrong, black = subject.scale.batch, 0.0, 0, 0
    bodies = [body for some in subject.sets.values() for body in some]
    for start in range(0, len(bodies), size):
        pixels, found = answers(subject.loader(name), bodies[start : start + size])
        wanted, expected = answers(subject.reference, bodies[start : start + size])
        wrong += sum(one != other for one, other in zip(found, expected, strict=True))
        black += int((flat(pixels) & ~flat(wanted)).sum())
        levels = (pixels - wanted).abs() * torch.tensor(SPEC.std).view(3, 1, 1) * 255
        levels = levels.nan_to_num(nan=_NOT_A_NUMBER, posinf=_NOT_A_NUMBER)
        means += levels.mean((1, 2, 3)).tolist()
        largest = max(largest, float(levels.max()))
    near = max(means) <= mean_limit + ROUNDING and largest <= limit + ROUNDING
    levels_off = (sum(means) / len(means), max(means), largest)
    names = ("mean_levels", "worst_mean_levels", "max_levels")
    values: dict[str, Any] = {name: round(value, 4) for name, value in zip(names, levels_off, strict=True)}
    values |= {"images": len(bodies), "limits": [mean_limit, limit], "wrong_status": wrong, "black": black}
    return [values | {"passed": near and not wrong and not black}]


def isolation(subject: Subject, name: str, kind: str) -> Rows:
    """Put bad files among good ones: those have to keep their bits, and the bad ones to get the reference's error.

    Only a strict loader refuses the kinds of SILENT_KINDS; what another answers to them is counted and not judged.
    """
    loader, bad, changed, wrong = subject.loader(name), subject.bad[kind], 0, 0
    clean = subject.batch()
    slots = range(EVERY - 1, len(clean), EVERY)
    good = [at for at in range(len(clean)) if at not in slots]
    batches = {"clean": clean}
    with quiet_stderr():
        alone, _ = answers(loader, clean)
        for start in range(0, len(bad), len(slots)):
            batch = batches["bad"] = list(clean)
            batch[EVERY - 1 :: EVERY] = (bad[start:] + clean)[: len(slots)]
            pixels, found = answers(loader, batch)
            _, expected = answers(subject.reference, batch)
            changed += sum(not torch.equal(pixels[at], alone[at]) for at in good)
            wrong += sum(one != other for one, other in zip(found, expected, strict=True))
        spent = in_turns({each: partial(_whole, subject, loader, one) for each, one in batches.items()}, 3, warm_up=0)
    silent = kind in SILENT_KINDS and name != STRICT
    times = round(medians(spent["bad"])[0] / medians(spent["clean"])[0], 3)
    values = {"files": len(bad), "changed_neighbours": changed, "wrong_status": wrong, "times_a_clean_batch": times}
    return [values | {"passed": not changed and (silent or not wrong)}]


def stream_order(subject: Subject, name: str) -> Rows:
    """Decode behind queued work, and read an earlier result meanwhile: both have to be what they are when alone."""
    loader = subject.loader(name)
    half = max(1, min(subject.scale.batch, len(subject.photos) // 2))
    batches = subject.photos[:half], subject.photos[half : 2 * half] or subject.photos[:half]
    wanted = [torch.as_tensor(loader.load(bodies).pixels).clone() for bodies in batches]
    subject.finish()
    wrong = overwritten = 0
    for _ in range(subject.scale.rounds):
        stream = None if subject.dry else torch.cuda.Stream(subject.device)
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            _keep_busy(subject)
            first = torch.as_tensor(loader.load(batches[0]).pixels)
            apart = [
                (first - wanted[0]).abs().amax(),
                (torch.as_tensor(loader.load(batches[1]).pixels) - wanted[1]).abs().amax(),
            ]
            _keep_busy(subject)
            again = (first - wanted[0]).abs().amax()  # queued; the memory may be taken before it has run
            del first
            apart.append((torch.as_tensor(loader.load(batches[1]).pixels) - wanted[1]).abs().amax())
            subject.finish()
        right = all(float(each) <= ROUNDING / 255 for each in apart)  # what is no number is not
        wrong += not right
        overwritten += right and not float(again) <= ROUNDING / 255
    values = {"rounds": subject.scale.rounds, "decoded_wrong": wrong, "overwritten": overwritten}
    return [values | {"passed": not wrong and not overwritten}]


def memory(subject: Subject, name: str, lost: bool) -> Rows:
    """Look at the memory before and after many batches; `lost` ones have a body that no decoder accepts."""
    batch, used = subject.batch(), []
    batch[-1:] = [without_tables(batch[0])] if lost else batch[-1:]
    with quiet_stderr():
        for _ in range(2):
            for _ in range(subject.scale.rounds):
                subject.loader(name).load(batch)
            subject.finish()
            used.append(memory_used(subject.device))
    values = {"batches": subject.scale.rounds, "before_mib": used[0] >> 20, "after_mib": used[1] >> 20}
    return [values | {"passed": used[1] - used[0] <= GROWTH_BYTES}]


def answers(loader: Loader, bodies: Sequence[bytes]) -> tuple[Tensor, list[str]]:
    """Return pixels (n, 3, S, S) on the CPU, NaN where there is an error, and "ok" or the error's code of each."""
    result = loader.load(bodies)
    pixels = torch.full((len(bodies), 3, SPEC.size, SPEC.size), float("nan"))
    pixels[result.ok] = torch.as_tensor(result.pixels).cpu().float()
    return pixels, [result.errors[at].code if at in result.errors else "ok" for at in range(len(bodies))]


def flat(pixels: Tensor) -> Tensor:
    """Return (n,), true where every channel has one value: what an engine that never ran leaves behind."""
    return (pixels.amax((2, 3)) == pixels.amin((2, 3))).all(1)


def _whole(subject: Subject, loader: Loader, bodies: Sequence[bytes]) -> None:
    loader.load(bodies)
    subject.finish()


def _keep_busy(subject: Subject) -> None:
    if subject.device.type == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)
