"""Whether decoding on the GPU is right: the reference's pixels, and no bad file that harms its neighbours."""

from collections.abc import Iterator, Sequence

import torch

from ....loaders import Loader, PillowLoader
from ....loaders.decode.dali_graph import DaliError, Resample
from ....loaders.errors import InputError
from ...bodies import BAD_KINDS, SILENT_KINDS, truncated
from ...machine import quiet_stderr
from .contract import LIMITS, Limit, codes, equality, off
from .graph_alone import GraphAlone
from .isolation import BAD, BATCH, GOAL, Isolation, isolation
from .subject import SPEC, Finding, ImageReport, Subject

_STRICT = "hw 0, strict"
"""A loader that reads all of a JPEG on the CPU before; without that, damage of SILENT_KINDS is answered."""

_RESAMPLES: tuple[Resample, ...] = ("exact", "fused")


def check_equality(subject: Subject, report: ImageReport) -> None:
    """The reference's pixels for each engine load, in two passes and in one; no image that is black."""
    bodies = {str(number): body for number, body in enumerate([*subject.photos, *subject.large[:2]])}
    for hw in subject.scale.engine_loads:
        for resample in _RESAMPLES:
            loader = subject.dali(hw, resample, batch=32)
            found = equality(loader, f"hw {hw:g} {resample}", "photographs", bodies, SPEC, limit_of(subject, resample))
            loader.close()
            report.equality.append(found.as_json())
            report.findings.append(
                Finding.of(
                    f"equality, hw {hw:g}, {resample}",
                    found.passed,
                    f"worst mean {found.worst_mean:.3f}, mean {found.mean:.4f}, max {found.max:.1f} (limits "
                    f"{found.limit}), {found.black} black, {found.wrong_status} of another status, "
                    f"{found.images} images",
                )
            )


def limit_of(subject: Subject, resample: str) -> Limit:
    """A GPU's decoder may differ more."""
    return LIMITS["dali gpu" if subject.kind == "gpu" else f"dali {resample}"]


def check_bad(subject: Subject, report: ImageReport) -> None:
    """Batches and pairs of neighbours with bad files among them, and what the bare graph says to truncated ones."""
    loads = (subject.scale.engine_loads[0], subject.scale.engine_loads[-1])
    made = {f"hw {hw:g}": subject.dali(hw, batch=32) for hw in loads} | {_STRICT: subject.dali(batch=32, strict=True)}
    held = {name: (loader, limit_of(subject, "exact")) for name, loader in made.items()}
    with quiet_stderr():
        rows = isolation(held, subject.photos, SPEC, rounds=subject.scale.rounds)
        report.isolation += [row.as_json() for row in rows]
        report.goals += _goals(rows)
        for name, (loader, _) in held.items():
            report.findings += _between_neighbours(subject, loader, name)
            loader.close()
        report.findings += [_truncated_alone(subject, hw) for hw in loads]


def _goals(rows: Sequence[Isolation]) -> Iterator[dict[str, object]]:
    """How slow a batch with bad files may be."""
    for name in dict.fromkeys(row.loader for row in rows):
        slowest = max((row for row in rows if row.loader == name), key=lambda row: row.ratio)
        yield {
            "goal": f"DALI, {name}: speed with {BAD} bad files of {BATCH} ({slowest.kind}), of a clean batch's",
            "wanted": 1 / GOAL,
            "measured": round(1 / slowest.ratio, 3),
            "met": slowest.ratio <= GOAL,
            "by": "dali",
        }


def _between_neighbours(subject: Subject, loader: Loader, name: str) -> Iterator[Finding]:
    """Every bad file between two good ones: the good ones to the bit as without it, the bad one's status right."""
    reference = PillowLoader(SPEC)
    left, right = subject.photos[0], subject.photos[-1]
    alone, _ = codes(loader, [left, right], SPEC.size)
    for kind, bodies in _bad_bodies(subject).items():
        changed = wrong = 0
        for body in bodies:
            pixels, found = codes(loader, [left, body, right], SPEC.size)
            changed += not torch.equal(pixels[[0, 2]], alone)
            wrong += found[1] != codes(reference, [body], SPEC.size)[1][0]
        value = f"{len(bodies)} files, {changed} changed a neighbour, {wrong} got another status than the reference's"
        if kind in SILENT_KINDS and name != _STRICT and not changed:
            yield Finding(f"bad files, {name}, {kind}", "INFO", value)
        else:
            yield Finding.of(f"bad files, {name}, {kind}", not changed and not wrong, value)


def _bad_bodies(subject: Subject) -> dict[str, list[bytes]]:
    found = {kind: [spoil(subject.photos[0], number) for number in range(8)] for kind, spoil in BAD_KINDS.items()}
    if subject.bad is not None:
        found[f"of {subject.bad}"] = [path.read_bytes() for path in sorted(subject.bad.iterdir())]
    return found


def _truncated_alone(subject: Subject, hw: float) -> Finding:
    """Truncated files past the guard, between good ones: an engine that answers them does so with garbage."""
    graph = GraphAlone(SPEC, device=subject.kind, device_id=subject.device.index or 0, hw_decoder_load=hw)
    photo, answered, worst = subject.photos[0], 0, 0.0
    whole = graph.load([photo]).pixels.cpu()
    for number in range(8):
        try:
            pixels = graph.load([photo, truncated(photo, number), photo]).pixels.cpu()
        except (DaliError, InputError):
            continue
        answered += 1
        worst = max(worst, float(off(pixels[1:2], whole, SPEC).mean()))
    value = f"{answered} of 8 answered without an error, up to {worst:.1f} levels off in the mean; the others refused"
    return Finding(f"truncated files past the guard, hw {hw:g}", "INFO", value)
