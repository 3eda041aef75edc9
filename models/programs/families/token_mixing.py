"""Makes the program of an MLP-Mixer: MLPs over tokens and over channels, one after the other."""

from typing import Any

from ....kernels.cpu.program import Head, Operator, Program
from ....kernels.cpu.row_operators import AddTransposed, Renew, Transpose
from ...architectures.timm_models import type_name
from ...serving.fused.chains import NotFusable, check_idle, parts_of
from ..blocks import dense_of, norm_of
from ..transformer import mlp_operators
from .hierarchical import patches_of

_MIXER_BLOCK = "timm.models.mlp_mixer.MixerBlock"


def mixer_program(model: Any, size: int) -> Program:
    """Make the program of timm's MLP-Mixer (arXiv 2105.01601) for images of this side, px.

    Raises:
        NotFusable: the kernels have no operator for a part; names it.
    """
    parts = parts_of(model, "stem", "blocks", "norm", "head_drop", "head")
    check_idle("head_drop", parts["head_drop"])
    if model.global_pool != "avg":
        raise NotFusable(f"its head pools by {model.global_pool!r}")
    embed, _ = patches_of(model.stem.proj, size)
    check_idle("stem.norm", model.stem.norm)
    operators = [operator for i, block in enumerate(model.blocks) for operator in _block(block, f"blocks.{i}")]
    return Program(embed, [*operators, Renew(norm_of(model.norm))], Head(None, dense_of(model.head), 0))


def _block(block: Any, name: str) -> list[Operator]:
    if type_name(block) != _MIXER_BLOCK:
        raise NotFusable(f"there is no rule for a block {type(block).__name__}")
    parts = parts_of(block, "norm1", "mlp_tokens", "drop_path", "norm2", "mlp_channels")
    check_idle("drop_path", parts["drop_path"])
    over_tokens = mlp_operators(block.mlp_tokens, None, f"{name}.mlp_tokens", adds=False)
    over_channels = mlp_operators(block.mlp_channels, None, f"{name}.mlp_channels")
    return [
        *(norm_of(block.norm1), Transpose(), *over_tokens, AddTransposed()),
        *(norm_of(block.norm2), *over_channels),
    ]
