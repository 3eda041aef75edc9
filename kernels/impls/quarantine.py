"""Keeps the kernels that the environment variable MILKWEED_QUARANTINE names from running, such as one that is wrong."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..chain_ir import ChainOp, Problem
from ..conv_branch import BLOCK_GROUPS
from ..triton.merging import SPLITS
from .base import OTHER_KIND, Impl, Runner, family

VARIABLE = "MILKWEED_QUARANTINE"
REASON = f"quarantined ({VARIABLE})"

PARTS = (
    "native_performer",
    *(f"native_branch:{tile}" for tile in range(len(BLOCK_GROUPS))),
    "native_add_layernorm",
    *(f"triton_merge:{tile}" for tile in range(len(SPLITS))),
)
"""The kernels that are no impls: a fused model calls them for a part that is no chain."""


def quarantined() -> tuple[str, ...]:
    """Return what the variable names: kernels (`native_mlp:3`) and whole families without their tile (`native_mlp`)."""
    names = map(str.strip, os.environ.get(VARIABLE, "").split(","))
    return tuple(dict.fromkeys(filter(None, names)))


def quarantine_refusal(name: str) -> str | None:
    """Return why a kernel of this name may not run; None if it may."""
    return REASON if {name, family(name)} & set(quarantined()) else None


def with_quarantine(impls: Sequence[Impl]) -> list[Impl]:
    """Return the impls in their order, those that are quarantined in a form that refuses.

    Raises:
        ValueError: a name is that of no impl given and of no other kernel; one line.
    """
    names = [*(impl.name for impl in impls), *PARTS]
    for name in quarantined():
        if name not in {*names, *map(family, names)}:
            raise ValueError(f"{VARIABLE} = {name!r}: there is no such kernel, there are {', '.join(names)}")
    return [impl if quarantine_refusal(impl.name) is None else Quarantined(impl) for impl in impls]


@dataclass(frozen=True)
class Quarantined:
    """An impl that is listed as before, and refuses what it was made for."""

    impl: Impl
    # The cache's key contains it: plans of the time with a quarantine do not stay when it has ended.
    build_id: ClassVar[str] = "quarantined"

    @property
    def name(self) -> str:
        return self.impl.name

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        return OTHER_KIND if self.impl.refuses(segment, problem) == OTHER_KIND else REASON

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        raise ValueError(f"{self.name}: {REASON}")
