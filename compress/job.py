"""CompressJob: what `milkweed compress` was asked for, and the file of a recipe."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from ..inference.backend import RUNTIMES, Backend, BackendError, Candidate, find_candidates
from ..inference.device import CPU
from ..models.bundle.strict_json import parse_json
from ..models.errors import quoted
from ..models.progress import Progress
from .recipe import Recipe, RecipeError, check_keys
from .selection import Target

OURS: Backend = "milkweed"
MIN_IMAGES = 32
"""Half of them calibrate and half are held out; with fewer, intervals would say nothing."""

MAX_IMAGES = 1000
MAX_BATCH = 256
METHODS = ("monarch", "tokens", "widths", "int8")
"""What a search may try."""


@dataclass(frozen=True, kw_only=True)
class CompressJob:
    """What to compress, by which images, and what the result has to keep.

    Args:
        source: the bundle of the dense model.
        images: a folder of images, labelled or not; every second one calibrates, the others are held out.
        target: what the result has to reach.
        recipe: what is done to the model, without a search; None searches.
        methods: those of METHODS that a search tries; what is named must be possible. Empty tries all that is possible.
        minutes: how long it may take at most, by which the training is as long as it can be; 0 does not train, and None
            trains as long as is usual.
        backends: those that may compute the result; empty for all that are installed.
        batches: numbers of images at a time for which a target of speed holds.
        max_images: how many images are used at most, evenly spaced.
        keep_weights: write the weights as they were beside a graph or program, for GPUs, and to train on from.
        discard_search: remove what was measured, which another target of the same model and images could begin with.
        command: the command line that does it again, for the report.

    Raises:
        ValueError: no batch, or one outside 1..MAX_BATCH; too few images allowed; an unknown method, or one that
            the target has no use for; minutes below 0.
    """

    source: Path
    out: Path
    images: Path
    target: Target = field(default_factory=Target)
    recipe: Recipe | None = None
    methods: tuple[str, ...] = ()
    minutes: float | None = None
    backends: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1, 8)
    max_images: int = MAX_IMAGES
    keep_weights: bool = False
    discard_search: bool = False
    overwrite: bool = False
    command: str | None = None

    def __post_init__(self) -> None:
        odd = [batch for batch in self.batches if not 1 <= batch <= MAX_BATCH]
        if odd or not self.batches:
            raise ValueError(f"batch {quoted(odd[0] if odd else '')}: must be whole numbers from 1 to {MAX_BATCH}")
        if self.max_images < MIN_IMAGES:
            raise ValueError(f"images {self.max_images}: a search needs at least {MIN_IMAGES}")
        if unknown := [name for name in self.methods if name not in METHODS]:
            raise ValueError(f"try {quoted(unknown[0])}: must be some of {', '.join(METHODS)}")
        if "monarch" in self.methods and self.minutes == 0:
            raise ValueError("try monarch: its layers have to be trained, and minutes 0 does not train")
        if "widths" in self.methods and self.target.bytes is None:
            raise ValueError("try widths: narrower layers save bytes alone, where a size is asked for")
        if self.minutes is not None and not 0 <= self.minutes < 1e6:
            raise ValueError(f"minutes {self.minutes}: must be a number from 0 on")

    def tries(self, method: str) -> bool:
        """Whether the search tries something."""
        return not self.methods or method in self.methods


def usable_runtimes(job: CompressJob, progress: Progress, ours_refusal: str | None) -> list[Candidate]:
    """Return every backend and number type that may compute the result on this machine, apart from our kernels' int8.

    Raises:
        BackendError: none of those that were asked for is installed.
    """
    runtimes, refused = find_candidates("auto", "auto", CPU)
    usable = [runtime for runtime in runtimes if not job.backends or runtime.backend in job.backends]
    missing = "; ".join(refused[name] for name in job.backends if name in refused)
    if ours_refusal is not None:
        usable = [runtime for runtime in usable if runtime.backend != OURS]
        if not usable:
            raise BackendError(missing or f"{RUNTIMES[OURS]}: {ours_refusal}")
        if not missing and (not job.backends or OURS in job.backends):
            missing = f"without our own kernels: {ours_refusal}"
    if missing:
        progress.note(missing)
    return usable


@dataclass(frozen=True)
class RecipeFile:
    """A recipe as a file holds it.

    Args:
        arch: the architecture that it was written for; None is for any.
    """

    recipe: Recipe = field(default_factory=Recipe)
    arch: str | None = None

    @classmethod
    def read(cls, path: Path) -> "RecipeFile":
        """Read the file, JSON of a recipe and `arch`.

        Raises:
            RecipeError: it cannot be read, or is none; names the file and what is wrong.
        """
        try:
            values = parse_json(path.read_bytes())
            check_keys("a recipe", values, {"arch", *(part.name for part in fields(Recipe))})
            arch = values.pop("arch", None)
            if not (arch is None or isinstance(arch, str)):
                raise RecipeError(f"arch {quoted(arch)} must be the name of an architecture")
            return cls(Recipe.from_dict(values), arch)
        except (OSError, ValueError) as error:
            raise RecipeError(f"recipe {path}: {getattr(error, 'strerror', None) or error}") from None
