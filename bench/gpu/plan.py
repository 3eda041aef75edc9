"""What is measured, in the order of its value, and how long each part is expected to take.

A step is one process; steps of one stage run at the same time, so only such ones share a stage as time nothing. A unit
is what one process measures, writes and ends before it begins the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


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
    DRY: MlpShape(64, 128, 17),
}

ATTENTION_SHAPES = {"ViT-B": (12, 64, 197), "ViT-S": (6, 64, 197), DRY: (2, 32, 17)}
"""Heads, their width, tokens."""

GOAL_SHAPES = ("ViT-B", "ViT-S")
GOAL_BATCHES = (32, 128)
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

BRANCHES = {
    "ViTAE-T": (256, 4, 2, 64, False),
    "ViTAE-S": (384, 6, 3, 96, False),
    "ViTAE-B": (768, 12, 4, 192, True),
}
"""Normal cells: width, heads, mlp ratio, groups, shallow with a class token."""

MLPS, ALL = ("mlp",), ("mlp", "qkv", "proj")
"""The linear layers that are Monarch."""

DRY_ARCH = "deit_tiny_patch16_224"
FORWARDS = {
    "vit_base_patch16_224": ((MLPS, ALL), GOAL_BATCHES),
    "vitae_basic_tiny": ((MLPS,), (32, 1)),
    "vitae_basic_small": ((MLPS,), (32, 1)),
    "vit_small_patch16_224": ((MLPS, ALL), GOAL_BATCHES),
    DRY_ARCH: ((MLPS,), (1,)),
}
"""The whole forwards of each architecture: which layers are Monarch, and the batches; in the order of their value."""

DENSE_COMPILED, DENSE_EAGER = "dense, torch.compile", "dense eager"
TWIN_COMPILED, TWIN_EAGER = "dense twin, torch.compile", "dense twin, eager launches"
"""Candidates that goals name: PyTorch's strongest (max-autotune), and the way most people run a model."""

OPERATORS = (
    *("native_linear", "native_mlp", "native_attention"),
    *("native_performer", "native_branch", "native_add_layernorm"),
)
TRITON = ("triton", "triton_mlp")
COMPILERS = 12
"""Processes that compile Triton's kernels ahead; a dry run has one."""

COUNTED = ("native_mlp", "native_linear", "native_attention", "triton_mlp")
"""The kernels whose hardware counters are read."""

ON_REQUEST = ("images",)
"""Sections that are only run when they are named."""

VITAES = ("vitae_basic_tiny", "vitae_basic_small")
VITAE_SHAPES = ("ViTAE-S, T2T-14", "ViTAE-T, T2T-7")


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    Args:
        out: the journal.
        seconds: after these, no further unit is begun.
        unit_seconds, unit_limit: of a `Step`.
        photos: a folder of JPEGs for the sections `served`, `numerics` and `images`.
        bad: a folder of bad files for `images`.
        bundles: trained models for `numerics`.
    """

    out: str
    units: Sequence[str] = ()
    seconds: float = 0.0
    unit_seconds: float = 1.0
    unit_limit: float = 60.0
    dtype: str = "bfloat16"
    nblocks: int = 4
    dry_run: bool = False
    photos: str | None = None
    bad: str | None = None
    bundles: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """Some units of one section, measured by one process.

    Args:
        unit_seconds: expected for one unit on an H100; only for choosing what fits.
        unit_limit: after so many seconds a unit is given up, and its process ended.
        start_seconds: expected until its first unit begins: imports, the CUDA context.
    """

    units: Sequence[str]
    unit_seconds: float
    unit_limit: float
    start_seconds: float = 6.0

    @property
    def section(self) -> str:
        """The section of all of its units."""
        return self.units[0].partition("/")[0]

    def __str__(self) -> str:
        return self.units[0] + (f" and {len(self.units) - 1} more" if len(self.units) > 1 else "")

    def holds(self, unit: str) -> bool:
        """Return whether a unit is one of these, or a part of one."""
        return f"{unit}/".startswith(tuple(f"{name}/" for name in self.units))


Stage = tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """What a start may do.

    Args:
        minutes: its time; None for as long as everything takes.
        sections: those that are asked for, and `library`, which tells what the figures belong to.
    """

    minutes: float | None
    sections: frozenset[str]

    def units(self, *, dry: bool) -> list[str]:
        """Return every unit of its sections, whether or not there is time for it."""
        steps = (step for stage in stages(dry=dry) for step in stage if step.section in self.sections)
        return [unit for step in steps for unit in step.units]


def parse_plan(text: str) -> Plan:
    """Read `minutes=9`, `sections=mlp+attention`, or both with a comma between; `minutes=all` is without a limit.

    Raises:
        ValueError: it says something else.
    """
    minutes, sections = "9", set(SECTIONS) - set(ON_REQUEST)
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name == "minutes":
            minutes = value
        elif name == "sections":
            sections = set(value.split("+"))
        else:
            raise ValueError(f"{part!r}: expected minutes=N or sections=NAME+NAME")
    if unknown := sections - set(SECTIONS):
        raise ValueError(f"section {min(unknown)!r}: expected some of {', '.join(SECTIONS)}")
    return Plan(None if minutes == "all" else float(minutes), frozenset({"library", *sections}))


def stages(*, dry: bool) -> list[Stage]:
    """Return everything there is to measure; a dry run walks the same path, tiny shapes, and expects little time."""
    shapes, batches = ([DRY], [2]) if dry else (GOAL_SHAPES, GOAL_BATCHES)
    first, vitaes, last = ([DRY_ARCH], [], []) if dry else (["vit_base_patch16_224"], VITAES, ["vit_small_patch16_224"])
    cells = _timed("cells", [*PERFORMERS, *BRANCHES], [32, 1], 1)
    if dry:
        cells = _timed("cells", [*list(PERFORMERS)[:1], *list(BRANCHES)[:1]], [2], 1)

    def mlps(names: Sequence[str], batches: Sequence[int], turn: int) -> Stage:
        return (Step(_timed("mlp", names, batches, turn), (50, 25)[turn - 1], 150),)  # the second compiles nothing

    def attention(turn: int) -> Stage:
        return (Step(_timed("attention", shapes, batches, turn), 6, 40),)

    def forwards(archs: Sequence[str], turn: int) -> list[Stage]:
        units = [_timed("forward", [arch], FORWARDS[arch][1], turn) for arch in archs]
        return [(Step(of_arch, (60, 35)[turn - 1], 200),) for of_arch in units]

    everything: list[Stage] = [
        (Step(["library"], 30, 300),),
        (
            *(Step([f"smoke/{name}"], 25, 30, 10) for name in OPERATORS),
            *(Step([f"precompile/{share}"], 45, 60) for share in range(1 if dry else COMPILERS)),
        ),
        tuple(Step([f"smoke/{name}"], 35, 240, 10) for name in TRITON),  # what was not compiled ahead is compiled here
        (Step(["ceilings"], 4, 30),),
        *(mlps(shapes, batches, 1), attention(1)),
        (Step([f"counters/{name}" for name in COUNTED], 12, 60, 2),),
        *forwards(first, 1),
        *(mlps(shapes, batches, 2), attention(2)),
        *forwards(first, 2),
        (Step(["served/r1", "served/r2"], 90, 400),),
        (Step(["numerics"], 40, 120),),
        *(stage for turn in ROUNDS for stage in forwards(vitaes, turn)),
        *(mlps(VITAE_SHAPES, GOAL_BATCHES, turn) for turn in ROUNDS if not dry),
        (Step(cells, 5, 40),),
        *(stage for turn in ROUNDS for stage in forwards(last, turn)),
        (Step([f"racecheck/{name}" for name in OPERATORS], 20, 120, 2),),
        (Step(["tests"], 240, 500, 2),),
        (Step(["images"], 300, 560),),
    ]
    return [tuple(replace(step, unit_seconds=1.0) for step in stage) for stage in everything] if dry else everything


def _timed(section: str, names: Sequence[str], batches: Sequence[int], turn: int) -> list[str]:
    return [f"{section}/{name}/{batch}/r{turn}" for batch in batches for name in names]


SECTIONS = tuple(dict.fromkeys(step.section for stage in stages(dry=False) for step in stage))
"""All sections, in the order of the stages."""
