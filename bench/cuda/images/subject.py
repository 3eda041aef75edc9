"""What the section `images` measures on and how much of it, and what it has found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ....loaders import PreprocessSpec
from ....loaders.decode.dali import DaliLoader
from ....loaders.decode.dali_graph import DaliOptions, Resample
from ...bodies import baseline, enlarged, made_jpegs, photos

SPEC = PreprocessSpec()

Status = Literal["PASS", "FAIL", "INFO"]


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Args:
        photos: of the folder, at most.
        large_px, large: sides of the enlarged photographs, and how many are made.
        engine_loads: `hw_decoder_load`s.
        row_seconds: of timing a row, at least three calls.
        rounds: of batches with bad files.
        iterations: of the stream order's test, each for one engine load.
        busy_ms: of work queued before each of them.
        lost_batches: before memory is looked at.
        serve_seconds: of load on a server.
        clients, connections: processes, and connections of each.
        latency_model: whose latency and memory are looked at.
        growth_images: computed between two looks at the memory.
    """

    photos: int = 200
    large_px: tuple[int, int] = (4000, 3000)
    large: int = 16
    batches: tuple[int, ...] = (1, 4, 16, 64, 256)
    threads: tuple[int, ...] = (2, 8, 16)
    engine_loads: tuple[float, ...] = (0.0, 0.65, 1.0)
    cpu_threads: int = 16
    row_seconds: float = 1.0
    rounds: int = 5
    iterations: int = 60
    busy_ms: float = 90.0
    lost_batches: int = 50
    serve_seconds: float = 6.0
    clients: int = 4
    connections: int = 48
    latency_model: str = "vit_base_patch16_224"
    growth_images: int = 100_000


TINY = Scale(
    photos=4,
    large_px=(320, 240),
    large=1,
    batches=(1, 2),
    threads=(1,),
    engine_loads=(0.0, 1.0),
    cpu_threads=1,
    row_seconds=0.01,
    rounds=1,
    iterations=2,
    lost_batches=2,
    serve_seconds=0.3,
    clients=1,
    connections=2,
    latency_model="deit_tiny_patch16_224",
    growth_images=4,
)
"""The scale of a dry run."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and how it stands."""

    name: str
    status: Status
    value: str

    @classmethod
    def of(cls, name: str, passed: bool, value: str) -> "Finding":
        """Passed or failed."""
        return cls(name, "PASS" if passed else "FAIL", value)

    def __str__(self) -> str:
        return f"  {self.status}  {self.name}: {self.value}"


@dataclass(frozen=True)
class Subject:
    """What is measured on: a device, photographs as they are and enlarged, and the time that is left.

    Args:
        large: the enlarged ones, where some part needs them.
        bad: a folder of bad files, if there is one.
        bundle: what is served; None makes a DeiT-Tiny.
        say: prints a line with the time.
        keep: writes what was found so far: what ends the process then does not take it along.
    """

    device: torch.device
    dtype: torch.dtype
    scale: Scale
    photos: list[bytes]
    large: list[bytes]
    bad: Path | None
    bundle: Path | None
    seconds_left: Callable[[], float]
    say: Callable[[str], None]
    keep: Callable[[], None] = lambda: None

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        """The name that loaders have for the device."""
        return "gpu" if self.device.type == "cuda" else "cpu"

    @property
    def sets(self) -> dict[str, list[bytes]]:
        """The photographs by how large they are; `made` are the enlarged ones."""
        return {f"{name_of(self.large)} made": self.large, name_of(self.photos): self.photos}

    def dali(
        self,
        hw: float = 0.0,
        resample: Resample = "exact",
        threads: int = 8,
        batch: int = 64,
        strict: bool = False,
    ) -> DaliLoader:
        """A DALI loader on the device; a batch is one run of the graph, however large."""
        options = DaliOptions(hw, resample, strict=strict, max_batch=batch, max_batch_pixels=batch * 20_000_000)
        index = self.device.index or 0
        return DaliLoader(SPEC, num_threads=threads, options=options, device=self.kind, device_id=index)

    def finish(self) -> None:
        """Wait for all that the device still has to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def name_of(bodies: Sequence[bytes]) -> str:
    """Photographs by their usual size, such as "12.0 MP"."""
    from ....loaders import validate

    pixels = sorted(validate(body).pixels for body in bodies)
    return f"{pixels[len(pixels) // 2] / 1e6:.1f} MP"


def take_photos(folder: Path | None, scale: Scale) -> tuple[list[bytes], list[bytes]]:
    """Photographs that the reference answers, baseline ones, and some of them enlarged."""
    found = baseline(photos(folder, 2 * scale.photos) if folder else made_jpegs(min(scale.photos, 12)))
    found = found[: scale.photos]
    if not found:
        raise ValueError(f"no baseline JPEG among the photographs of {folder}")
    large = [enlarged(found[place % len(found)], *scale.large_px, seed=place) for place in range(scale.large)]
    return found, large


@dataclass
class ImageReport:
    """What was found, as it grows; `served_lines` are `served` for people."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    equality: list[dict[str, Any]] = field(default_factory=list)
    isolation: list[dict[str, Any]] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    served: list[dict[str, Any]] = field(default_factory=list)
    ingest: list[dict[str, Any]] = field(default_factory=list)
    latency: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, object]] = field(default_factory=list)
    served_lines: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data; `failed` counts what did not pass."""
        failed = sum(finding.status == "FAIL" for finding in self.findings)
        data = asdict(self)
        del data["served_lines"]
        return {**data, "failed": failed}
