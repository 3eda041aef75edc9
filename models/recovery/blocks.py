"""Finds a model's blocks, and records their outputs while it runs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

_BLOCK = re.compile(r"layers\.\d+\.(?:RC|NC\.\d+)|blocks\.\d+")


@dataclass
class Tap:
    """The output of each tapped block in the last forward."""

    outputs: dict[str, Tensor] = field(default_factory=dict)


def block_names(model: nn.Module) -> tuple[str, ...]:
    """The blocks of a model in the order they run: ViTAE's reduction and normal cells, ViT's blocks.

    Blocks that do nothing are left out.

    Raises:
        ValueError: the model has no blocks.
    """
    names = tuple(
        name for name, module in model.named_modules() if _BLOCK.fullmatch(name) and not isinstance(module, nn.Identity)
    )
    if not names:
        raise ValueError(f"{type(model).__name__} has no blocks: a ViT's are blocks.N, ViTAE's layers.N.RC and .NC.N")
    return names


@contextmanager
def tapped(model: nn.Module, names: Sequence[str]) -> Iterator[Tap]:
    """Inside, record the outputs of the named blocks in every forward."""
    tap = Tap()

    def record(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            tap.outputs[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(record(name)) for name in names]
    try:
        yield tap
    finally:
        for handle in handles:
            handle.remove()


def feature_error(features: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared difference of two blocks' outputs, each position normalised over its channels, in float32.

    The layers that read them normalise them as well. Without it only a few channels with very large constants, and
    the last blocks, whose outputs are largest, would count.

    Args:
        features, wanted: tokens (B, N, C), or a grid (B, C, H, W).
    """
    return F.mse_loss(_normalised(features), _normalised(wanted))


def _normalised(features: Tensor) -> Tensor:
    tokens = features.flatten(2).transpose(1, 2) if features.dim() == 4 else features
    return F.layer_norm(tokens.float(), tokens.shape[-1:])
