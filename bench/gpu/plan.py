"""What is measured, in the order of its value, and how long each part is expected to take.

A step is one process; steps of one stage run at the same time, so only such ones share a stage as time nothing. A unit
is what one process measures, writes and ends before it begins the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .rows.shapes import BRANCHES, DRY, FORWARDS, GOAL_BATCHES, GOAL_SHAPES, PERFORMERS, ROUNDS

OPERATORS = (
    *("native_linear", "native_mlp", "native_attention"),
    *("native_performer", "native_branch", "native_add_layernorm"),
)
TRITON = ("triton", "triton_mlp")
COUNTED = ("native_mlp", "native_linear", "native_attention", "triton_mlp")
"""The kernels whose hardware counters are read."""

ON_REQUEST = ("images",)
"""Sections that are only run when they are named."""

DRY_ARCH = "deit_tiny_patch16_224"
VITAES = ("vitae_basic_tiny", "vitae_basic_small")
VITAE_SHAPES = ("ViTAE-S, T2T-14", "ViTAE-T, T2T-7")

SHORTEST_SECONDS = 5.0
"""The driver begins no process if less time than this is left."""


@dataclass(frozen=True)
class Step:
    """Some units of one section, measured by one process.

    Args:
        start_seconds: expected until its first unit begins: imports, the CUDA context.
        unit_seconds: expected for one unit on an H100; only for choosing what fits.
        unit_limit: after so many seconds a unit is given up, and its process ended.
    """

    name: str
    section: str
    units: tuple[str, ...]
    unit_seconds: float
    unit_limit: float
    start_seconds: float = 6.0

    @property
    def seconds(self) -> float:
        """Expected for all of it."""
        return self.start_seconds + self.unit_seconds * len(self.units)

    def within(self, seconds: float) -> "Step":
        """The step with as many of its units as are expected to fit."""
        fitting = int((seconds - self.start_seconds) / self.unit_seconds)
        return replace(self, units=self.units[: max(0, fitting)])


Stage = tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """What a start may do.

    Args:
        minutes: its time; None for as long as everything takes.
        sections: those that are asked for; None for all but ON_REQUEST.
    """

    minutes: float | None = 9.0
    sections: frozenset[str] | None = None

    def asks_for(self, step: Step) -> bool:
        """`library` is always asked for: it tells what the figures belong to."""
        if self.sections is None:
            return step.section not in ON_REQUEST
        return step.section == "library" or step.section in self.sections


def parse_plan(text: str) -> Plan:
    """Read `minutes=9`, `sections=mlp+attention`, or both with a comma between; `minutes=all` is without a limit.

    Raises:
        ValueError: it says something else.
    """
    minutes, sections = Plan().minutes, None
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name == "minutes":
            minutes = None if value == "all" else float(value)
        elif name == "sections":
            sections = frozenset(value.split("+"))
            if unknown := sections - set(section_names()):
                raise ValueError(f"section {sorted(unknown)[0]!r}: expected some of {', '.join(section_names())}")
        else:
            raise ValueError(f"{part!r}: expected minutes=N or sections=NAME+NAME")
    return Plan(minutes, sections)


def section_names() -> list[str]:
    """All sections, in the order of the stages."""
    return list(dict.fromkeys(step.section for stage in stages(dry=False) for step in stage))


def all_units(plan: Plan, *, dry: bool) -> list[str]:
    """Every unit that the plan's sections ask for, whether or not there is time for it."""
    return [unit for stage in stages(dry=dry) for step in stage if plan.asks_for(step) for unit in step.units]


def stages(*, dry: bool) -> list[Stage]:
    """Everything there is to measure; a dry run walks the same path with tiny shapes, and expects little time."""
    found = _stages(dry)
    return [tuple(replace(step, unit_seconds=1.0) for step in stage) for stage in found] if dry else found


def _stages(dry: bool) -> list[Stage]:
    shapes, batches = ([DRY], (2,)) if dry else (GOAL_SHAPES, GOAL_BATCHES)
    first, vitaes, last = ([DRY_ARCH], [], []) if dry else (["vit_base_patch16_224"], VITAES, ["vit_small_patch16_224"])
    cells = [*list(PERFORMERS)[:1], *list(BRANCHES)[:1]] if dry else [*PERFORMERS, *BRANCHES]
    return [
        (Step("library", "library", ("library",), 30, 300),),
        (*_smoke(OPERATORS, 25, 30), Step("precompile", "precompile", ("precompile",), 45, 60)),
        _smoke(TRITON, 35, 240),  # what was not compiled ahead is compiled here
        (Step("ceilings", "ceilings", ("ceilings",), 4, 30),),
        *_goal_rows(shapes, batches, 1),
        (Step("counters", "counters", _units("counters", COUNTED), 12, 60, 2),),
        *_forwards(first, 1, dry),
        *_goal_rows(shapes, batches, 2),
        *_forwards(first, 2, dry),
        (Step("served", "served", _units("served", ("r1", "r2")), 90, 400),),
        (Step("numerics", "numerics", ("numerics",), 40, 120),),
        *(stage for turn in ROUNDS for stage in _forwards(vitaes, turn, dry)),
        *((_mlps(VITAE_SHAPES, GOAL_BATCHES, turn),) for turn in (() if dry else ROUNDS)),
        (Step("cells", "cells", _timed("cells", cells, (2,) if dry else (32, 1), 1), 5, 40),),
        *(stage for turn in ROUNDS for stage in _forwards(last, turn, dry)),
        (Step("racecheck", "racecheck", _units("racecheck", OPERATORS), 20, 120, 2),),
        (Step("tests", "tests", ("tests",), 240, 500, 2),),
        (Step("images", "images", ("images",), 300, 560),),
    ]


def _smoke(names: Sequence[str], seconds: float, limit: float) -> Stage:
    return tuple(Step(f"smoke {name}", "smoke", (f"smoke/{name}",), seconds, limit, 10) for name in names)


def _mlps(shapes: Sequence[str], batches: Sequence[int], turn: int) -> Step:
    """The MLPs of some shapes; what the first round compiled is kept on disk."""
    units = _timed("mlp", shapes, batches, turn)
    return Step(f"mlp of {' and '.join(shapes)}, round {turn}", "mlp", units, 50 if turn == 1 else 25, 150)


def _goal_rows(shapes: Sequence[str], batches: Sequence[int], turn: int) -> list[Stage]:
    """MLPs and attention of the shapes whose goals come first."""
    units = _timed("attention", shapes, batches, turn)
    return [(_mlps(shapes, batches, turn),), (Step(f"attention, round {turn}", "attention", units, 6, 40),)]


def _forwards(archs: Sequence[str], turn: int, dry: bool) -> list[Stage]:
    units = {arch: _timed("forward", [arch], (1,) if dry else FORWARDS[arch].batches, turn) for arch in archs}
    return [(Step(f"{arch}, round {turn}", "forward", units[arch], 60 if turn == 1 else 35, 200),) for arch in archs]


def _timed(section: str, names: Sequence[str], batches: Sequence[int], turn: int) -> tuple[str, ...]:
    return tuple(f"{section}/{name}/{batch}/r{turn}" for batch in batches for name in names)


def _units(section: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{section}/{name}" for name in names)
