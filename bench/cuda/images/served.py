"""End to end: a real server under load with raw photographs, beside decoding alone and the forward alone."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ....inference.device import resolve_dtype
from ....inference.forward import Forward, plan_lanes
from ....inference.open import InferenceOptions, open_model, prepare_model
from ....inference.pipeline import GPU_BATCH_SIZE
from ....loaders import validate
from ....models import load_bundle, macs, save_bundle
from ....models.bundle.labels import default_labels
from ....server.config.settings import Settings
from ...load.folder import load
from ...process import running_server
from ..forward import MLPS, monarch_model, random_config
from ..report import at_least
from .rates import rate
from .subject import ImageReport, Subject

ARCH, CLASSES = "deit_tiny_patch16_224", 1000
LOADERS = ("dali", "cpu")
LARGE_PIXELS = 2_000_000

SHARE_GOAL, RATIO_GOAL = 0.8, 1.5


@dataclass(frozen=True)
class Served:
    """One server under one load, and what its two halves do alone; images a second."""

    what: str
    loader: str
    served: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    decode_alone: float
    forward_alone: float

    @property
    def share(self) -> float:
        """The rate of the whole, as a share of the slower half alone."""
        return self.served / min(self.decode_alone, self.forward_alone)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "share": round(self.share, 3)}

    def __str__(self) -> str:
        return (
            f"  {self.what:12} {self.loader:6} {self.served:10.0f} {self.p50_ms:9.1f} {self.p99_ms:9.1f} "
            f"{self.decode_alone:10.0f} {self.forward_alone:10.0f} {100 * self.share:7.0f}%  {self.statuses}"
        )


HEAD = (
    f"  {'photos':12} {'loader':6} {'images/s':>10} {'p50 ms':>9} {'p99 ms':>9} "
    f"{'decode/s':>10} {'forward/s':>10} {'share':>8}  statuses"
)


def measure_served(subject: Subject, report: ImageReport) -> None:
    """Every loader with every size of photograph; goals of those that were measured."""
    with tempfile.TemporaryDirectory() as scratch:
        bundle = subject.bundle or made_bundle(Path(scratch) / "bundle", ARCH, MLPS)
        forward = _forward_alone(subject, bundle)
        folders = {what: written(Path(scratch) / what, bodies) for what, bodies in subject.sets.items()}
        rows: list[Served] = []
        report.served_lines.append(HEAD)
        print(HEAD, flush=True)
        for loader in LOADERS:
            if subject.seconds_left() < 0:
                subject.say(f"skipped: served by loader {loader}: out of time")
                continue
            alone = {what: _decode_alone(subject, bundle, loader, bodies) for what, bodies in subject.sets.items()}
            if subject.kind == "gpu":
                torch.cuda.empty_cache()
            with running_server(bundle, served_settings(subject, loader)) as (_, url):
                for what, folder in folders.items():
                    rows.append(_under_load(subject, url, loader, what, folder, alone[what], forward))
                    print(rows[-1], flush=True)
                    report.served.append(rows[-1].as_json())
                    report.served_lines.append(str(rows[-1]))
                    subject.keep()
        report.goals += _goals(rows)


def _under_load(
    subject: Subject, url: str, loader: str, what: str, folder: Path, decode: float, forward: float
) -> Served:
    scale = subject.scale
    seen = load(url, folder, clients=scale.clients, connections=scale.connections, seconds=scale.serve_seconds)
    return Served(what, loader, seen.images_per_second, seen.p50_ms, seen.p99_ms, seen.statuses, decode, forward)


def served_settings(subject: Subject, loader: str) -> dict[str, Any]:
    """The server's settings. Kernels are not measured at its start: that takes minutes and is not looked at here."""
    return {
        "loader": loader,
        "device": str(subject.device),
        "dtype": "auto",
        "tuning": "off",
        "decode_threads": subject.scale.cpu_threads,
        "max_queue_images": max(256, subject.scale.clients * subject.scale.connections),
        "max_held_bytes": 4 << 30,  # as many large photographs as there are connections
    }


def _decode_alone(subject: Subject, bundle: Path, loader: str, bodies: list[bytes]) -> float:
    """Images a second of the server's loader, as the server makes it, on the batches it would get."""
    options = InferenceOptions(
        device=str(subject.device),
        dtype="auto",
        loader=loader,
        decode_threads=subject.scale.cpu_threads,
        fusion="off",  # the forward is not what is measured here
        cuda_graphs=False,
        cpu_graphs=False,
    )
    pipeline = open_model(bundle, options).pipeline
    found = rate(subject, pipeline.loader.load, bodies, _batch(subject, bodies), subject.scale.row_seconds)
    pipeline.close()
    return found.images_per_second or 0.0


def _forward_alone(subject: Subject, bundle: Path) -> float:
    """Images a second of the server's forward on pixels that are there."""
    model, config = load_bundle(bundle)
    device, size = subject.device, int(config.preprocess["size"])
    plan = plan_lanes(device, macs(model, size).total)
    dtype = resolve_dtype("auto", device)
    form = prepare_model(model, config, device, dtype, size, InferenceOptions(tuning="off"))
    forward = Forward(form.model, plan, device=device, dtype=dtype, size=size, graph_batch_sizes=form.graph_batch_sizes)
    batch = _batch(subject, subject.photos)
    pixels = torch.randn(batch, 3, size, size, device=device)
    found = rate(subject, lambda _: forward.run(pixels), [b""], batch, subject.scale.row_seconds)
    forward.close()
    return found.images_per_second or 0.0


def _batch(subject: Subject, bodies: list[bytes]) -> int:
    """Images of a batch where every connection has one waiting; the server bounds their pixels too."""
    pixels = sum(validate(body).pixels for body in bodies) / len(bodies)
    most = int(Settings.model_fields["max_batch_pixels"].default / pixels)
    return max(1, min(GPU_BATCH_SIZE, subject.scale.clients * subject.scale.connections, most))


def made_bundle(path: Path, arch: str, layers: Sequence[str]) -> Path:
    """A model of random weights, those layers Monarch."""
    model = monarch_model(arch, layers, 4)
    save_bundle(path, model, random_config(arch, model), default_labels(CLASSES))
    return path


def written(folder: Path, bodies: list[bytes]) -> Path:
    """The folder, with the bodies as files."""
    folder.mkdir()
    for number, body in enumerate(bodies):
        (folder / f"{number:04d}.jpg").write_bytes(body)
    return folder


def _goals(rows: list[Served]) -> Iterator[dict[str, object]]:
    for row in rows:
        if row.loader == "dali":
            name = f"served with DALI, {row.what}: share of the slower of decode and forward alone"
            yield at_least(name, SHARE_GOAL, row.share)
    for what in dict.fromkeys(row.what for row in rows):
        found = {row.loader: row.served for row in rows if row.what == what}
        if len(found) == 2 and float(what.split()[0]) * 1e6 >= LARGE_PIXELS:
            yield at_least(f"served, {what}: DALI over the cpu loader", RATIO_GOAL, found["dali"] / found["cpu"])
