"""Lists the impls whose use is in doubt: they are deleted if no tuner on a GPU chooses them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..chain_ir import Monarch, Operator, Problem
from ..triton.tiles import SQUARE, VARIANTS, WIDE
from .native import MLP_TILES

Where = Callable[[Sequence[Operator], Problem], bool]


@dataclass(frozen=True)
class OnTrial:
    """A doubt about some impls.

    Args:
        what: what is in doubt and why, for people.
        impls: their names.
        where: whether the doubt is about a segment on a problem.
    """

    what: str
    impls: tuple[str, ...]
    where: Where = lambda segment, problem: True


def _on_hopper(segment: Sequence[Operator], problem: Problem) -> bool:
    return problem.device.type == "cuda" and torch.cuda.get_device_capability(problem.device)[0] == 9


def _of_rank_768(segment: Sequence[Operator], problem: Problem) -> bool:
    return any(layer.shape.K * layer.shape.q == 768 for layer in segment if isinstance(layer, Monarch))


def _not_of_four_blocks(segment: Sequence[Operator], problem: Problem) -> bool:
    return any(layer.shape.K != 4 for layer in segment if isinstance(layer, Monarch))


_PLAIN = tuple(f"{kind}:{VARIANTS.index(variant)}" for kind in ("triton", "triton_mlp") for variant in (WIDE, SQUARE))

ON_TRIAL = (
    OnTrial("Triton's wide and square tiles without TMA on sm_90, which has it", _PLAIN, _on_hopper),
    OnTrial("short_attention tiles 2 and 3: one block a multiprocessor", ("native_attention:2", "native_attention:3")),
    OnTrial("PyTorch's memory-efficient attention beside flash and cuDNN", ("sdpa_efficient",)),
    OnTrial("monarch_linear tile 2 at rank 768, too large to run twice", ("native_linear:2",), _of_rank_768),
    OnTrial(
        "monarch_mlp with nblocks 2 or 8, which monarch_linear could carry",
        tuple(f"native_mlp:{tile}" for tile in MLP_TILES),
        _not_of_four_blocks,
    ),
)


def on_trial(name: str, segment: Sequence[Operator], problem: Problem) -> str | None:
    """Return what is in doubt about an impl on a segment; None if nothing is."""
    return next((one.what for one in ON_TRIAL if name in one.impls and one.where(segment, problem)), None)
