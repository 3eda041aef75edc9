"""Arguments of tiny architectures, and options of small layers of each kind."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.models import BundleConfig
from milkweed.models.architectures.registry import default_preprocess
from milkweed.models.bundle.labels import default_labels
from milkweed.models.layers.select import layer_specs_of

TINY_VITAE: dict[str, Any] = {
    "img_size": 32,
    "reductions": ["performer", "performer_less"],
    "embed_dims": [8, 8],
    "token_dims": [8, 16],
    "downsample": [4, 2],
    "kernel_sizes": [7, 3],
    "dilations": [[1, 2], [1, 2]],
    "depths": [0, 2],
    "num_heads": [1, 4],
    "mlp_ratio": 2,
    "groups": [1, 4],
}
TINY_VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
TINY_T2T: dict[str, Any] = {
    "img_size": 32,
    "embed_dim": 32,
    "depth": 1,
    "num_heads": 4,
    "mlp_ratio": 2,
    "token_dim": 8,
}
TINY_VITAE_V2: dict[str, Any] = {
    "img_size": 32,
    "embed_dims": [4, 4, 8, 8],
    "token_dims": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 4],
    "reduction_heads": [1, 1, 2, 2],
    "groups": [1, 2, 2, 4],
    "reduction_groups": [1, 2, 2, 4],
}
KIND_OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {},
    "monarch": {"nblocks": 4},
    "lowrank": {"rank": 5},
    "blockdiag": {"nblocks": 4, "shuffle": True},
    "pixelfly": {"rank": 4, "block_size": 4, "butterfly_size": 4, "n_factors": 1},
}


def config_of(model: nn.Module, arch: str, args: Mapping[str, Any], classes: int, **more: Any) -> BundleConfig:
    """The config of a bundle that holds the model."""
    return BundleConfig(
        arch=arch,
        arch_args={"num_classes": classes, **args},
        structure=layer_specs_of(model),
        preprocess=default_preprocess(arch, **args),
        labels=default_labels(classes),
        **more,
    )


def weighted(model: nn.Module) -> nn.Module:
    """Give the model weights, biases and positions that every mistake shows in: none is zero, one or small."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2 if parameter.dim() > 1 else 1).add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def with_statistics(model: nn.Module) -> nn.Module:
    """Give a model's BatchNorms means, variances, weights and biases as after training: none is 0 or 1."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            bounds = {"running_mean": (-0.3, 0.3), "running_var": (0.5, 2), "weight": (0.5, 1.5), "bias": (-0.3, 0.3)}
            for name, (low, high) in bounds.items():
                if (tensor := getattr(module, name)) is not None:
                    nn.init.uniform_(tensor, low, high)
    return model.eval()


def logits(model: nn.Module, size: int = 32) -> Tensor:
    """Return what the model says of two images of this side."""
    with torch.no_grad():
        found: Tensor = model(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
    return found
