"""Where a model's blocks are: ViTAE's reduction and normal cells, ViT's blocks."""

import re

from torch import nn

_BLOCK = re.compile(r"layers\.\d+\.(?:RC|NC\.\d+)|blocks\.\d+")


def block_names(model: nn.Module) -> tuple[str, ...]:
    """The blocks of a model in the order they run, each of which takes one tensor and gives one; may be none.

    Those that do nothing are left out.
    """
    return tuple(
        name for name, module in model.named_modules() if _BLOCK.fullmatch(name) and not isinstance(module, nn.Identity)
    )
