"""The decode benchmark: encoded photographs to float32 model input, by our loaders and by the usual ways.

All ways take turns. Each row is the best round in CPU time, which a shared machine disturbs least; images a second are
wall time.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ...loaders import CpuLoader, InputError, Loader, validate
from ...loaders.decode.turbo import decode_jpeg, sound_jpeg
from ..bodies import enlarged
from ..machine import about, quiet_stderr, torch_threads
from ..turns import Spent, in_turns, medians
from .methods import MAX_BATCH, REFERENCE, SPEC, Load, WholeLoader, alone, dali, made, methods, our_loaders

DEFAULT_OUT = Path("bench/results/decode.json")
BATCHES, THREADS = (1, 8, MAX_BATCH), (1, 2)
LARGE_IMAGES = 12  # photographs that the section `crop` enlarges to 12 megapixels
BATCH_IMAGES = 64  # images of one pass of the section `batches`, at most: it has many cells
_PACKAGES = (
    *("torchvision", "pillow", "simplejpeg", "opencv-python-headless", "nvidia-dali-cuda130"),
    "nvidia-nvimgcodec-cu13",
)

START_OF_SCAN = b"\xff\xda"
CHUNK = 8  # bodies of one batch: DALI decodes a batch or nothing

KINDS: dict[str, Callable[[np.random.Generator, bytes], bytes]] = {
    "one bit": lambda rng, old: bytes([old[0] ^ 1 << int(rng.integers(8))]),
    "one byte": lambda rng, old: rng.bytes(1),
    "16 random bytes": lambda rng, old: rng.bytes(16),
    "64 zeros": lambda rng, old: bytes(64),
}
"""What is written over the coded data at one place, by the kind of damage."""

READS: dict[str, Callable[[bytes], object]] = {
    "decode": lambda body: decode_jpeg(body, validate(body)),
    "check": lambda body: sound_jpeg(body, validate(body)),
}

Report = dict[str, Any]


def run(
    bodies: Sequence[bytes],
    *,
    rounds: int = 5,
    sections: Collection[str] = ("one", "batches", "damage", "crop"),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure with every library that this machine has.

    Args:
        bodies: JPEGs.
        rounds: passes over the images for each row.
        sections: those of SECTIONS that are measured.
        progress: called with sections done and in all.

    Returns:
        Machine, versions, settings, what was skipped, and of the sections `rows`, `batches`, `damage`, `crop`.
    """
    before = os.getloadavg()
    report: Report = {
        "spec": SPEC.to_dict(),
        "images": len(bodies),
        "mean_bytes": round(sum(map(len, bodies)) / len(bodies)),
        "rounds": rounds,
        "threads": 1,
        "rows": [],
        "skipped": {},
    }
    chosen = [measure for name, measure in SECTIONS.items() if name in sections]
    with torch_threads(1):
        for done, measure in enumerate(chosen, 1):
            section = measure(bodies, rounds)
            report["skipped"] |= section.pop("skipped", {})
            report |= section
            if progress is not None:
                progress(done, len(chosen))
    return {**about("decode", before, _PACKAGES), **report}


def one(bodies: Sequence[bytes], rounds: int) -> Report:
    """Every way, one image after the other; and how far its pixels are from the reference's."""
    ways, skipped = methods()
    for load in ways.values():
        _one_by_one(load, bodies[:8])
    spent = in_turns({name: partial(_one_by_one, load, bodies) for name, load in ways.items()}, rounds, warm_up=0)
    rows = [
        {"method": name, **_figures(spent[name], len(bodies)), **_difference(load, ways[REFERENCE], bodies[:50])}
        for name, load in ways.items()
    ]
    return {"rows": sorted(rows, key=lambda row: float(row["cpu_ms_per_image"])), "skipped": skipped}


def batches(
    bodies: Sequence[bytes], rounds: int, sizes: Sequence[int] = BATCHES, threads: Sequence[int] = THREADS
) -> Report:
    """Our loaders by batch and threads; CPU time is the process's, DALI's own threads included."""
    bodies = bodies[:BATCH_IMAGES]
    calls: dict[tuple[str, int, int], Callable[[], None]] = {}
    with ExitStack() as opened:
        for count in threads:
            loaders, skipped = our_loaders(count)
            for name, loader in loaders.items():
                opened.callback(loader.close)
                for size in sizes:
                    loader.load(bodies[:size])
                    calls[name, size, count] = partial(_in_batches, loader, bodies, size)
        spent = in_turns(calls, rounds, warm_up=0)
    rows = [
        {"loader": name, "batch": size, "threads": count, **_figures(spent[name, size, count], len(bodies))}
        for name, size, count in sorted(calls)
    ]
    return {"batches": rows, "skipped": {f"batches: {name}": reason for name, reason in skipped.items()}}


def damaged(bodies: Sequence[bytes], kind: str, seed: int = 0) -> list[bytes]:
    """Each body with the same length, damaged once at a place behind the head of its scan."""
    rng = np.random.default_rng([seed, *kind.encode()])
    out = []
    for body in bodies:
        scan = body.rindex(START_OF_SCAN)
        first = scan + 2 + int.from_bytes(body[scan + 2 : scan + 4], "big")
        at = int(rng.integers(first, len(body) - 66))
        new = KINDS[kind](rng, body[at:])
        out.append(body[:at] + new + body[at + len(new) :])
    return out


def damage(bodies: Sequence[bytes], rounds: int) -> Report:
    """A row for each kind, with each photograph damaged once.

    `decode_refused` counts bodies that the header guard or a whole decode refuses, as the `cpu` loader does;
    `check_refused` those that the guard or the check refuses, which reads all coded data at an eighth of the size;
    `agreed` those of which both say the same; `dali_refused` those that DALI refuses without the check, None where DALI
    is not here. CPU milliseconds are those of an undamaged photograph, in the best round.
    """
    spent = in_turns({name: partial(_one_by_one, read, bodies) for name, read in READS.items()}, rounds, warm_up=0)
    ms = {f"{name}_cpu_ms": round(min(cpu for _, cpu in spent[name]) / len(bodies), 3) for name in READS}
    lenient = made({"dali": lambda: dali("exact", strict=False)})[0].get("dali")
    rows = []
    with quiet_stderr():
        for kind in KINDS:
            bad = damaged(bodies, kind)
            decode, check = ([_refuses(read, body) for body in bad] for read in READS.values())
            chunks = [bad[start : start + CHUNK] for start in range(0, len(bad), CHUNK)]
            rows.append(
                {
                    "kind": kind,
                    "images": len(bad),
                    "decode_refused": sum(decode),
                    "check_refused": sum(check),
                    "agreed": sum(decoded == checked for decoded, checked in zip(decode, check, strict=True)),
                    "dali_refused": sum(len(lenient.load(chunk).errors) for chunk in chunks) if lenient else None,
                    **ms,
                }
            )
    if lenient:
        lenient.close()
    return {"damage": rows}


def crop(bodies: Sequence[bytes], rounds: int) -> Report:
    """Our loader, which decodes what is looked at, against whole pictures: the images, and some as 12 megapixels.

    A row for either: CPU milliseconds an image, medians of the rounds, also with `jpeg_scaling` "fast"; how many images
    have other bits, and how many levels 0..255 the fast ones are off in the mean; of the images damaged as in KINDS,
    how many have another verdict: another error or none, or other bits.
    """
    large = [enlarged(body, seed=number) for number, body in enumerate(bodies[:LARGE_IMAGES])]
    fast = CpuLoader(replace(SPEC, jpeg_scaling="fast"))
    ways: dict[str, Loader] = {"whole": WholeLoader(SPEC), "part": CpuLoader(SPEC), "fast": fast}
    rows = []
    for name, images in (("as given", bodies), ("12 megapixels", large)):
        spent = in_turns({way: partial(_in_batches, ways[way], images, 1) for way in ways}, rounds)
        bad = [body for kind in KINDS for body in damaged(images, kind)] if images is bodies else []
        with quiet_stderr():
            rows.append(
                {
                    "images": name,
                    "count": len(images),
                    **{f"{way}_cpu_ms": medians(spent[way], len(images))[1] for way in ways},
                    "other_bits": sum(_differs(ways, body) for body in images),
                    "fast_levels_off": _difference(alone(fast), alone(ways["whole"]), images)["mean_difference_levels"],
                    "damaged": len(bad),
                    "other_verdicts": sum(_differs(ways, body) for body in bad),
                }
            )
    return {"crop": rows}


SECTIONS: dict[str, Callable[[Sequence[bytes], int], Report]] = {
    "one": one,
    "batches": batches,
    "damage": damage,
    "crop": crop,
}


def _differs(ways: Mapping[str, Loader], body: bytes) -> bool:
    whole, part = ways["whole"].load([body]), ways["part"].load([body])
    same = [str(error) for error in whole.errors.values()] == [str(error) for error in part.errors.values()]
    return not same or not np.array_equal(whole.pixels, part.pixels)


def _refuses(read: Callable[[bytes], object], body: bytes) -> bool:
    try:
        read(body)
    except InputError:
        return True
    return False


def _one_by_one(load: Callable[[bytes], object], bodies: Sequence[bytes]) -> None:
    for body in bodies:
        load(body)


def _in_batches(loader: Loader, bodies: Sequence[bytes], size: int) -> None:
    for start in range(0, len(bodies), size):
        loader.load(bodies[start : start + size])


def _figures(spent: Spent, images: int) -> dict[str, float]:
    wall, cpu = zip(*spent, strict=True)
    return {
        "cpu_ms_per_image": round(min(cpu) / images, 3),
        "cpu_ms_per_image_median": round(median(cpu) / images, 3),
        "images_per_second": round(1e3 * images / min(wall), 1),
        "images_per_second_median": round(1e3 * images / median(wall), 1),
    }


def _difference(load: Load, reference: Load, bodies: Sequence[bytes]) -> dict[str, float]:
    """Mean and largest difference from the reference, in levels 0..255."""
    level = torch.tensor(SPEC.std).view(3, 1, 1) * 255
    off = torch.stack([((load(body) - reference(body)) * level).abs() for body in bodies])
    return {
        "mean_difference_levels": round(float(off.mean()), 4),
        "max_difference_levels": round(float(off.max()), 2),
    }
