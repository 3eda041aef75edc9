"""The section `images` of `bench/gpu.py`: is decoding on the GPU right, how fast, and what does a server make of it.

    python -m milkweed.bench.gpu --sections images --photos DIR --no-build --out bench/results/gpu_images.json

Needs nvidia-dali, which brings nvidia-nvimgcodec, and for the parts from `numerics` to `ingest` all that a server
needs; torchvision's rows say so where it is missing. On a machine without a network nothing need be installed:
nvidia-dali on PYTHONPATH is enough, which is its wheels unpacked into one folder: nvidia-dali-cuda130,
nvidia-nvimgcodec-cu13, nvidia-nvjpeg, nvtx, optree, libcst, gast, astunparse, makefun (libnvcomp, nvTIFF and
nvJPEG2000 are optional). The libraries of other Python versions may go: about 140 MB are left, as .tar.xz.
`python -c "import nvidia.dali, nvidia.nvimgcodec"` tells whether it worked. `--no-build` takes the kernel library
that is there: a server uses it, decoding does not.

Parts, in order; an error in one does not cost the others, and after each the JSON is written:
  facts     versions, the GPU's JPEG engines
  equality  the reference's pixels for each `hw_decoder_load`, in two passes and in one; no black image
  bad       bad files harm no neighbour; what the bare graph answers to truncated ones
  stream    decoding behind queued work, while an earlier result is still read
  memory    in use after lost batches, and once DALI's pools were released
  numerics  logits and classes of --bundle against float32
  growth    weights of a Monarch model beside the dense one's, and memory over 100,000 images
  latency   one image, its bytes in and its answer out
  served    a server under load for loaders dali and cpu, beside decode alone and forward alone
  ingest    images a second that one process takes in, by size of the photographs
  rates     images a second and latencies, against torchvision, nvImageCodec and our cpu loader; most important first
The rates take the time that is left; `--parts` runs some parts alone. `--dry-run` walks all of it with DALI's graph
on the CPU; its figures are none.
"""

import argparse
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from rich.console import Console

from ..run import IMAGE_PARTS, Run
from .checks import check_bad, check_equality
from .facts import image_facts
from .isolation import isolation_table
from .rates import best_lines, measure_rates
from .stream import check_memory, check_stream_order
from .subject import TINY, ImageReport, Scale, Subject, take_photos

Part = Callable[[Subject, ImageReport], None]


def _facts(subject: Subject, report: ImageReport) -> None:
    report.facts = image_facts(subject.device)
    print("  " + ", ".join(f"{name} {value}" for name, value in report.facts.items()), flush=True)


def _late(module: str, function: str) -> Part:
    """A part that needs all that a server needs: imported when it is asked for."""

    def part(subject: Subject, report: ImageReport) -> None:
        getattr(import_module(f".{module}", __package__), function)(subject, report)

    return part


_PARTS: Mapping[str, Part] = {
    "facts": _facts,
    "equality": check_equality,
    "bad": check_bad,
    "stream": check_stream_order,
    "memory": check_memory,
    "numerics": _late("model", "check_numerics"),
    "growth": _late("model", "check_growth"),
    "latency": _late("answers", "measure_latency"),
    "served": _late("served", "measure_served"),
    "ingest": _late("answers", "measure_ingest"),
    "rates": measure_rates,
}


def images_section(run: Run, options: argparse.Namespace, save: Callable[[], None]) -> None:
    """Run the parts that were asked for; `save` is called whenever there is more to save."""
    report, before = ImageReport(), torch.get_num_threads()

    def keep() -> None:
        run.images = report.as_json()
        save()

    torch.set_num_threads(1)  # on what little there is of an image, several threads only wait for each other
    try:
        with torch.inference_mode(False):  # loaders write from threads of their own, which are in no such mode
            subject = _subject(run, options, keep)
            for name in (name for name in IMAGE_PARTS if name in options.parts):
                _run_part(name, run, subject, report)
                keep()
    finally:
        torch.set_num_threads(before)
    for line in _summary(report):
        print(line, flush=True)
    run.skipped += [f"images {_named(row)}: {row['note']}" for row in report.rates if row["note"]]


def _run_part(name: str, run: Run, subject: Subject, report: ImageReport) -> None:
    """Measure and print what was found; an error in one part must not cost the others."""
    if subject.seconds_left() < 0 and name != "rates":  # which lists its rows
        run.skipped.append(f"images {name}: out of time")
        return
    run.say(f"images: {name}")
    seen, listed = len(report.findings), len(report.isolation)
    try:
        _PARTS[name](subject, report)
    except Exception as error:
        traceback.print_exc()
        run.skipped.append(f"images {name}: ended by {type(error).__name__}: {error}"[:300])
    for line in _lines(report, seen, listed):
        print(line, flush=True)


def _subject(run: Run, options: argparse.Namespace, keep: Callable[[], None]) -> Subject:
    scale = TINY if run.dry else Scale()
    photos, large = take_photos(options.photos, scale)
    run.say(f"images: {len(photos)} photographs, {len(large)} enlarged")
    return Subject(
        run.device,
        run.dtype,
        scale,
        photos,
        large,
        options.bad,
        options.bundle,
        lambda: run.seconds_left("images"),
        run.say,
        keep,
    )


def _lines(report: ImageReport, seen: int, listed: int) -> Iterator[str]:
    """What a part added, for people."""
    if report.isolation[listed:]:
        console = Console(width=100)
        with console.capture() as captured:
            console.print(isolation_table(report.isolation[listed:]))
        yield captured.get()
    yield from map(str, report.findings[seen:])


def _summary(report: ImageReport) -> Iterator[str]:
    """Short enough for the end of a long output: what failed, and who is fastest where."""
    yield "\nimages, in short:"
    passed = sum(finding.status == "PASS" for finding in report.findings)
    yield f"  {passed} checks passed, {report.as_json()['failed']} failed"
    yield from (str(finding) for finding in report.findings if finding.status == "FAIL")
    yield from best_lines(report.rates)
    yield from report.served_lines


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['what']} {row['way']} batch {row['batch']}"
