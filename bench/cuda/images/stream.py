"""What only time shows: whether decoding keeps to its stream's order, and what lost batches leave in memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ....loaders.decode.dali import DaliLoader
from ...bodies import without_tables
from ...machine import quiet_stderr
from .contract import ROUNDING
from .facts import memory_used
from .subject import SPEC, Finding, ImageReport, Subject

BATCH = 32
_SLEEP_PROBE = 10_000_000


def check_stream_order(subject: Subject, report: ImageReport) -> None:
    """Decode behind queued work, keep reading an earlier result meanwhile: both must be what they are when alone."""
    half = max(1, min(BATCH, len(subject.photos) // 2))
    batches = subject.photos[:half], subject.photos[half : 2 * half] or subject.photos[:half]
    busy = _busy(subject)
    for hw in (0.0, 1.0):
        loader = subject.dali(hw, batch=BATCH)
        wanted = [loader.load(bodies).pixels.clone() for bodies in batches]
        subject.finish()
        late = overwritten = 0
        for _ in range(subject.scale.iterations):
            worst = _iteration(subject, loader, batches, wanted, busy)
            right, later, still = (levels <= ROUNDING for levels in worst)  # not a number is not
            late += not (right and later)
            overwritten += right and not still
        loader.close()
        value = f"{subject.scale.iterations} times: {late} decoded wrong, {overwritten} overwritten while still read"
        report.findings.append(Finding.of(f"stream order, hw {hw:g}", not late and not overwritten, value))


def check_memory(subject: Subject, report: ImageReport) -> None:
    """What is in use before and after batches that DALI loses, and after its pools gave back what nobody uses."""
    loader = subject.dali(batch=BATCH)
    good = subject.photos[:8]
    loader.load(good)
    subject.finish()
    used = [memory_used(subject.device)]
    with quiet_stderr():
        for _ in range(subject.scale.lost_batches):
            loader.load([*good, without_tables(subject.photos[0])])
    subject.finish()
    used.append(memory_used(subject.device))
    loader.close()  # which releases DALI's pools
    used.append(memory_used(subject.device))
    before, after, released = (used_bytes / 2**30 for used_bytes in used)
    what = "GPU" if subject.kind == "gpu" else "process, dry run"
    value = f"{before:.2f} GiB before, {after:.2f} after, {released:.2f} once pools were released"
    report.findings.append(Finding(f"memory ({what}), {subject.scale.lost_batches} lost batches", "INFO", value))


def _iteration(
    subject: Subject,
    loader: DaliLoader,
    batches: tuple[list[bytes], list[bytes]],
    wanted: list[Tensor],
    busy: Callable[[], None],
) -> tuple[float, float, float]:
    """Largest differences, in levels: of what was decoded first, of what came later, of the first when read late."""
    with _fresh_stream(subject):
        busy()
        first = loader.load(batches[0]).pixels
        apart = (first - wanted[0]).abs().amax()
        second = loader.load(batches[1]).pixels
        late = (second - wanted[1]).abs().amax()
        busy()
        again = (first - wanted[0]).abs().amax()  # queued; the memory may be taken before it has run
        del first, second
        third = loader.load(batches[1]).pixels
        late = torch.maximum(late, (third - wanted[1]).abs().amax())
        subject.finish()
    levels = max(SPEC.std) * 255
    return float(apart) * levels, float(late) * levels, float(again) * levels


def _fresh_stream(subject: Subject) -> AbstractContextManager[object]:
    """Work goes to a stream of its own."""
    if subject.device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    context: AbstractContextManager[object] = torch.cuda.stream(stream)
    return context


def _busy(subject: Subject) -> Callable[[], None]:
    """Keeps the current stream busy for about `busy_ms`."""
    if subject.device.type != "cuda":
        return lambda: None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SLEEP_PROBE)
    start.record()
    torch.cuda._sleep(_SLEEP_PROBE)
    end.record()
    torch.cuda.synchronize(subject.device)
    cycles = int(_SLEEP_PROBE * subject.scale.busy_ms / start.elapsed_time(end))
    return lambda: torch.cuda._sleep(cycles)
