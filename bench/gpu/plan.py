"""What is measured, in the order of its value.

A step is one process. A unit is what it measures, writes and ends before it begins the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..bodies import BAD_KINDS


class MlpShape(NamedTuple):
    """An MLP of width `width` and hidden width `hidden` on `tokens` tokens an image.

    `goal` is the speedup over the best dense row that the project asks for from batch 32 on; None where it asks none.
    """

    width: int
    hidden: int
    tokens: int
    goal: float | None = None


DRY = "dry run"
"""The shapes of dry runs, which prove the script and give no figure, have this name."""

MLP_SHAPES = {
    "ViT-B": MlpShape(768, 3072, 197, goal=2.0),
    "ViT-S": MlpShape(384, 1536, 197, goal=2.0),
    "ViTAE-S, T2T-14": MlpShape(384, 1152, 196, goal=1.5),
    "ViTAE-T, T2T-7": MlpShape(256, 512, 196, goal=1.3),
    "ViT-T, DeiT-T": MlpShape(192, 768, 197),
    DRY: MlpShape(256, 1024, 17),  # the smallest that every kernel takes
}

ATTENTION_SHAPES = {"ViT-B": (12, 64, 197), "ViT-S": (6, 64, 197), DRY: (2, 32, 17)}
"""Heads, their width, tokens."""

GOAL_SHAPES, GOAL_BATCHES = ("ViT-B", "ViT-S"), (32, 128)
"""MLPs and attention of these shapes at these batches are measured first."""

ROUNDS = (1, 2)
"""What has a goal is measured so often; once shows nothing."""

PERFORMERS = {
    "ViTAE-T cell 1": (256, 64, 3136),
    "ViTAE-T cell 2": (192, 64, 784),
    "ViTAE-S cell 1": (256, 96, 3136),
    "ViTAE-S cell 2": (192, 192, 784),
}
"""Reduction cells: input width, token width, tokens."""

MERGES, MERGED = {"ViT-B merge": "ViT-B"}, 0.22
"""Merges of tokens behind an attention of that shape, and the share of its patches that merge."""


class Product(NamedTuple):
    """One linear layer on a batch of ViT-B: its widths, whether GELU follows, and whether the next reads 8 bits."""

    width: int
    out: int
    gelu: bool = False
    requantized: bool = False


PRODUCTS = {
    "ViT-B fc1": Product(768, 3072, gelu=True, requantized=True),
    "ViT-B fc2": Product(3072, 768),
    "ViT-B qkv": Product(768, 2304),
    "ViT-B proj": Product(768, 768),
    DRY: Product(64, 128, gelu=True, requantized=True),
}

BRANCHES = {
    "ViTAE-T": (256, 4, 2, 64, False),
    "ViTAE-S": (384, 6, 3, 96, False),
    "ViTAE-B": (768, 12, 4, 192, True),
}
"""Normal cells: width, heads, mlp ratio, groups, shallow with a class token."""

MLPS, ALL = ("mlp",), ("mlp", "qkv", "proj")
"""The linear layers that are Monarch."""

VIT_B, VIT_S = ("vit_base_patch16_224",), ("vit_small_patch16_224",)
VITAES, VITAE_SHAPES = ("vitae_basic_tiny", "vitae_basic_small"), ("ViTAE-S, T2T-14", "ViTAE-T, T2T-7")
DRY_ARCH = "deit_tiny_patch16_224"
FORWARDS = {
    **dict.fromkeys(VIT_B, ((MLPS, ALL), GOAL_BATCHES)),
    **dict.fromkeys(VITAES, ((MLPS,), (32, 1))),
    **dict.fromkeys(VIT_S, ((MLPS, ALL), GOAL_BATCHES)),
    DRY_ARCH: ((MLPS,), (1,)),
}
"""The whole forwards of each architecture: which layers are Monarch, and the batches."""

LEVERS = {"tokens": (True, False), "8 bits": (False, True), "tokens, 8 bits": (True, True)}
"""What a dense model's forward is made cheaper by: whether it merges tokens, and whether it computes in 8 bits."""

DENSE_COMPILED, DENSE_EAGER = "dense, torch.compile", "dense eager"
PLAIN, PLAIN_COMPILED = "16 bits", "16 bits, torch.compile"
TWIN_COMPILED, TWIN_EAGER = "dense twin, torch.compile", "dense twin, eager launches"
"""Candidates that goals name: PyTorch's strongest (max-autotune), and the way most people run a model."""

VARIANTS = {
    "native_mlp": 4,
    "native_attention": 4,
    "native_performer": 0,
    "native_branch": 3,
    "native_add_layernorm": 0,
    "gluon_mlp": 2,
    "triton": 6,
    "triton_mlp": 6,
    "triton_merge": 3,
    "triton_quantized": 3,
}
"""How many tile variants each kernel has; none where it has no number."""

COUNTED = "gluon_mlp:1"
"""The tile whose launches' counters are read: a Monarch MLP's inner half between its first and its last factor."""

TILES = {name: [f"{name}:{tile}" for tile in range(count)] or [name] for name, count in VARIANTS.items()}
OPERATORS = tuple(name for name in TILES if name.startswith("native"))

CPU, EXACT, FUSED, ENGINE, STRICT = "cpu", "dali exact", "dali fused", "dali exact, hw 1", "dali exact, strict"
"""Our CPU loader, and DALI: two resize passes, one, the GPU's JPEG engine, coded data read on the CPU before."""

FOLDER = "bad files: of the folder"
IMAGES = {
    "equality with PillowLoader": (EXACT, FUSED, ENGINE),
    **{f"bad files: {kind}": (EXACT, ENGINE, STRICT) for kind in BAD_KINDS},
    FOLDER: (EXACT, ENGINE, STRICT),
    "stream order": (EXACT, ENGINE),
    "memory over sound batches": (EXACT,),
    "memory over lost batches": (EXACT,),
    "rate, photographs": (64, 1, 16, 256),
    "rate, 4000x3000 px": (64, 1, 16, 256),
}
"""The checks of decoding with their candidates, those that matter most first; rates have the sizes of batches."""

ON_REQUEST = ("images",)
"""Sections that are only run when they are named."""


@dataclass(frozen=True)
class Task:
    """What every process is told.

    Args:
        out: the journal.
        photos: a folder of JPEGs for the sections `served`, `numerics` and `images`.
        bad: a folder of bad files for `images`.
        bundles: trained models for `numerics`.
        sections: those that are asked for; none for all that need not be named. `library` is always among them, since
            it tells what the figures belong to.
    """

    out: str
    dtype: str = "bfloat16"
    nblocks: int = 4
    dry_run: bool = False
    photos: str | None = None
    bad: str | None = None
    bundles: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()


class Step(NamedTuple):
    """Some units of one section, measured by one process; each is given up after so many seconds."""

    units: Sequence[str]
    seconds: float

    @property
    def section(self) -> str:
        """The section of all of its units."""
        return self.units[0].partition("/")[0]


def steps(task: Task) -> list[Step]:
    """Return the steps of a task's sections, in the order of their value."""
    asked = {"library", *(task.sections or set(SECTIONS) - set(ON_REQUEST))}
    return [step for step in all_steps(task) if step.section in asked]


def all_steps(task: Task) -> list[Step]:
    """Return everything there is to measure; a dry run walks the same path with tiny shapes."""
    dry = task.dry_run
    cells = [*list(PERFORMERS)[: 1 if dry else None], *list(BRANCHES)[: 1 if dry else None]]
    rounds = () if dry else ROUNDS
    images = [(what, names) for what, names in IMAGES.items() if task.bad or what != FOLDER]
    return [
        Step(["library"], 300),
        *_smoke(),
        Step(["ceilings"], 60),
        *_first(1, dry=dry),
        *_first(2, dry=dry),
        Step(["served/r1", "served/r2"], 400),
        Step(["numerics"], 120),
        *(step for turn in rounds for step in _forwards(VITAES, turn)),
        *(_timed("mlp", VITAE_SHAPES, GOAL_BATCHES, turn, 150) for turn in rounds),
        _timed("cells", cells, [2] if dry else [32, 1], 1, 40),
        *(step for turn in rounds for step in _forwards(VIT_S, turn)),
        Step([f"racecheck/{name}" for name in OPERATORS], 120),
        Step([f"images/{what}/{name}" for what, names in images for name in names], 200),
    ]


def _first(turn: int, *, dry: bool) -> Iterator[Step]:
    """Yield what decides which kernels stay, then the goals of ViT-B and ViT-S, in one round."""
    batches, archs = ([2], [DRY_ARCH]) if dry else (GOAL_BATCHES, VIT_B)
    large, *small = [DRY] if dry else GOAL_SHAPES
    yield _timed("mlp", [large], batches, turn, 200)
    if turn == 1:
        yield Step([f"counters/{COUNTED}"], 120)
    yield _timed("quantized", [DRY] if dry else [name for name in PRODUCTS if name != DRY], batches, turn, 60)
    if turn == 1:
        yield _timed("cells", [*MERGES], batches[:1], turn, 40)
    yield from _forwards(archs, turn, "levers")
    yield _timed("attention", [large, *small], batches, turn, 40)
    if small:
        yield _timed("mlp", small, batches, turn, 200)
    yield from _forwards(archs, turn)


def _smoke() -> Iterator[Step]:
    """Yield the smoke tests: one process a native kernel, and one a tile of Triton's, which it compiles.

    The kernel in Gluon comes first: alone among them it can hang.
    """
    for name, tiles in sorted(TILES.items(), key=lambda kernel: not kernel[0].startswith("gluon")):
        units = [f"smoke/{name}/{tile}" for tile in tiles]
        yield from [Step(units, 60)] if name in OPERATORS else [Step([unit], 240) for unit in units]


def _forwards(archs: Sequence[str], turn: int, section: str = "forward") -> list[Step]:
    seconds = 400 if section == "levers" else 200  # a block that merges has plans of its own to be chosen
    return [_timed(section, [arch], FORWARDS[arch][1], turn, seconds) for arch in archs]


def _timed(section: str, names: Sequence[str], batches: Sequence[int], turn: int, seconds: float) -> Step:
    return Step([f"{section}/{name}/{batch}/r{turn}" for batch in batches for name in names], seconds)


SECTIONS = tuple(dict.fromkeys(step.section for step in all_steps(Task(""))))
"""All sections, in the order of their value."""


def parse_plan(text: str) -> tuple[float, tuple[str, ...]]:
    """Read `minutes=9`, `sections=mlp+attention`, or both with a comma between; `minutes=all` is without a limit.

    Raises:
        ValueError: it says something else.
    """
    minutes, sections = "9", ""
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name == "minutes":
            minutes = "inf" if value == "all" else value
        elif name == "sections":
            sections = value
        else:
            raise ValueError(f"{part!r}: expected minutes=N or sections=NAME+NAME")
    names = tuple(filter(None, sections.split("+")))
    if unknown := set(names) - set(SECTIONS):
        raise ValueError(f"section {min(unknown)!r}: expected some of {', '.join(SECTIONS)}")
    return float(minutes), names
