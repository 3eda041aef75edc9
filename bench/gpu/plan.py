"""What is measured, in the order of its value, and how long each part is expected to take.

A step is one process; steps of one stage run at the same time, so only such ones share a stage as time nothing. A unit
is what one process measures, writes and ends before it begins the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .rows.shapes import DRY, FORWARDS, GOAL_BATCHES, GOAL_SHAPES, MLP_SHAPES

OPERATORS = (
    *("native_linear", "native_mlp", "native_attention"),
    *("native_performer", "native_branch", "native_add_layernorm"),
)
TRITON = ("triton", "triton_mlp")
COUNTED = ("native_mlp", "native_linear", "native_attention", "triton_mlp")
"""The kernels whose hardware counters are read."""

ON_REQUEST = ("memcheck", "images")
"""Sections that are only run when they are named: for an operator that failed its smoke test, and for decoding."""

SHORTEST_SECONDS = 5.0
"""With less left than this, no process is begun."""


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
    shapes = [DRY] if dry else GOAL_SHAPES
    archs = ["deit_tiny_patch16_224"] if dry else [arch for arch in FORWARDS if arch.startswith("vit_")]
    return [
        (Step("library", "library", ("library",), 30, 300),),
        (
            *(Step(f"smoke {name}", "smoke", (f"smoke/{name}",), 25, 30, 10) for name in OPERATORS),
            Step("precompile", "precompile", ("precompile",), 45, 60),
        ),
        tuple(Step(f"smoke {name}", "smoke", (f"smoke/{name}",), 25, 30, 10) for name in TRITON),
        (Step("ceilings", "ceilings", ("ceilings",), 4, 30),),
        *_goal_rows(shapes, 1, dry),
        (Step("counters", "counters", _units("counters", COUNTED), 12, 60, 2),),
        *_forwards(archs, 1, dry),
        *_goal_rows(shapes, 2, dry),
        *_forwards(archs, 2, dry),
        (Step("cells", "cells", _cells(dry), 15, 60),),
        *([] if dry else _forwards(["vitae_basic_tiny"], 1, dry)),
        (Step("racecheck", "racecheck", _units("racecheck", OPERATORS), 20, 120, 2),),
        *([] if dry else [(Step("mlp, other shapes", "mlp", _other_mlps(), 25, 90),)]),
        *([] if dry else _forwards([a for a in FORWARDS if a not in (*archs, "vitae_basic_tiny")], 1, dry)),
        (Step("tests", "tests", ("tests",), 240, 500, 2),),
        (Step("memcheck", "memcheck", _units("memcheck", OPERATORS), 20, 120, 2),),
        (Step("images", "images", ("images",), 300, 560),),
    ]


def _goal_rows(shapes: Sequence[str], turn: int, dry: bool) -> list[Stage]:
    """MLPs and attention of the shapes that goals are set for; compiled code of the first round is kept on disk."""
    what = [f"{shape}/{batch}" for batch in _batches(dry) for shape in shapes]
    mlp, attention = (tuple(f"{section}/{each}/r{turn}" for each in what) for section in ("mlp", "attention"))
    return [
        (Step(f"mlp, round {turn}", "mlp", mlp, 50 if turn == 1 else 25, 150),),
        (Step(f"attention, round {turn}", "attention", attention, 6, 40),),
    ]


def _forwards(archs: Sequence[str], turn: int, dry: bool) -> list[Stage]:
    return [
        (Step(f"{arch}, round {turn}", "forward", units, 60 if turn == 1 else 35, 200),)
        for arch in archs
        for units in [tuple(f"forward/{arch}/{batch}/r{turn}" for batch in ((1,) if dry else FORWARDS[arch].batches))]
    ]


def _batches(dry: bool) -> tuple[int, ...]:
    return (2,) if dry else GOAL_BATCHES


def _cells(dry: bool) -> tuple[str, ...]:
    return ("cells/1/r1",) if dry else ("cells/32/r1", "cells/1/r1")


def _other_mlps() -> tuple[str, ...]:
    """The published shapes without a goal at batches 32 and 128, and all of them at small batches."""
    large = [f"mlp/{s.name}/{batch}/r1" for batch in GOAL_BATCHES for s in MLP_SHAPES if s.name not in GOAL_SHAPES]
    return (*large, *(f"mlp/{s.name}/{batch}/r1" for batch in (8, 1) for s in MLP_SHAPES))


def _units(section: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{section}/{name}" for name in names)
