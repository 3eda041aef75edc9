"""Finds a model's blocks, and records their outputs while it runs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ...models.architectures.token_blocks import TokenBlock
from ...models.hooks import hooked

_BLOCK = re.compile(r"layers\.\d+\.(?:RC|NC\.\d+)|blocks\.\d+")


def block_names(model: nn.Module) -> tuple[str, ...]:
    """The blocks of a model in the order they run: ViTAE's reduction and normal cells, ViT's blocks.

    Blocks that do nothing are left out, and those behind a merge in a model without a class token: no token of theirs
    is one of the dense model's.

    Raises:
        ValueError: the model has no blocks.
    """
    names = tuple(
        name
        for name, module in model.named_modules()
        if _BLOCK.fullmatch(name)
        and not isinstance(module, nn.Identity)
        and not (isinstance(module, TokenBlock) and not module.prefix)
    )
    if not names:
        raise ValueError(f"{type(model).__name__} has no blocks: a ViT's are blocks.N, ViTAE's layers.N.RC and .NC.N")
    return names


@contextmanager
def intermediates(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Inside, record the outputs of the named blocks in the last forward; of a TokenBlock those that never merge."""
    outputs: dict[str, Tensor] = {}

    def record(name: str, _: Any, output: Any) -> None:
        block = model.get_submodule(name)
        outputs[name] = output[0][:, : block.prefix] if isinstance(block, TokenBlock) else output

    with hooked(model, names, record):
        yield outputs


def feature_error(features: Tensor, reference: Tensor) -> Tensor:
    """Mean squared difference of two blocks' outputs, each position normalised over its channels, in float32.

    The layers that read them normalise them as well. Without it only a few channels with very large constants, and
    the last blocks, whose outputs are largest, would count.

    Args:
        features, reference: tokens (B, N, C), or a grid (B, C, H, W). If `reference` has more tokens, the first count.
    """
    student, dense = _normalised(features), _normalised(reference)
    return F.mse_loss(student, dense[:, : student.shape[1]])


def _normalised(features: Tensor) -> Tensor:
    tokens = features.flatten(2).transpose(1, 2) if features.dim() == 4 else features
    return F.layer_norm(tokens.float(), tokens.shape[-1:])
