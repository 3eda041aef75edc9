"""Small models of every family that is fused, with widths that every kernel takes, and their fused copies."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.kernels.tuning.plan import spans_of
from milkweed.models.architectures.registry import create_model
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.serving.fused.device_kernels import DeviceKernels
from milkweed.models.serving.fused.fuse import fuse
from milkweed.models.serving.fused.report import FusionReport
from milkweed.models.serving.fused.tuning import Tuning

CPU = torch.device("cpu")
NATIVE = DeviceKernels("the operators' CPU implementations", None, shared_limit=160 * 1024)

# Widths that every kernel takes: head dim 32, groups of 4 channels, performers of 32.
VITAE: dict[str, Any] = {
    "img_size": 32,
    "reductions": ("performer", "performer_less"),
    "embed_dims": (16, 32),
    "token_dims": (32, 64),
    "downsample": (4, 1),
    "kernel_sizes": (7, 3),
    "dilations": ((1, 2), (1, 2)),
    "depths": (0, 2),
    "num_heads": (1, 2),
    "mlp_ratio": 2,
    "groups": (1, 16),
}
SHALLOW: dict[str, Any] = {
    "img_size": 32,
    "reductions": ("embedding",),
    "embed_dims": (64,),
    "token_dims": (64,),
    "downsample": (8,),
    "kernel_sizes": (3,),
    "dilations": ((1,),),
    "depths": (2,),
    "num_heads": (2,),
    "mlp_ratio": 2,
    "groups": (16,),
    "shallow": True,
}
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "init_values": 0.5}
T2T: dict[str, Any] = {"img_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2}
VITAE_V2: dict[str, Any] = {
    "img_size": 32,
    "embed_dims": (8, 8, 16, 16),
    "token_dims": (16, 32, 32, 64),
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 1, 1, 2),
    "reduction_heads": (1, 1, 1, 1),
    "groups": (1, 2, 2, 4),
    "reduction_groups": (1, 2, 2, 4),
}
MODELS = {
    "vitae": ("vitae_basic", VITAE),
    "vitae with a class token": ("vitae_basic", SHALLOW),
    "vit": ("deit_tiny_patch16_224", VIT),
    "t2t": ("t2t_vit_7", T2T),
}
BRANCHES, PERFORMERS = ("vitae", "vitae with a class token"), ("vitae", "t2t")
MONARCH_ROLES = {"dense": [], "mlp": ["mlp"], "all": ["mlp", "qkv", "proj"]}


def build(name: str, roles: str = "dense", nblocks: int = 4) -> nn.Module:
    """A model with weights and statistics that every mistake would show in."""
    arch, args = {**MODELS, "v2": ("vitaev2_s", VITAE_V2)}[name]
    torch.manual_seed(0)
    dense = create_model(arch, num_classes=10, **args)
    patterns = MONARCH_ROLES[roles]
    layers = layer_specs_for(dense, select_linears(dense, patterns), nblocks=nblocks) if patterns else {}
    # The performer's own linears stay: they are not blocks.
    layers = {key: layer for key, layer in layers.items() if ".RC." not in key}
    torch.manual_seed(0)
    model = create_model(arch, num_classes=10, layer_specs=layers, **args)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


class Preferring:
    """A timer that finds the engines of one name fast, and keeps what it was asked: `0:2 torch`, `plan 0b1 a | b`."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.labels: list[str] = []

    def __call__(self, call: Callable[[], object]) -> float:
        self.labels.append(str(call))
        match str(call).split(" ", 2):
            case ["plan", bits, engines]:
                spans, names = spans_of(int(bits[2:] or "0", 2), len(bits) - 1), engines.split(" | ")
            case [span, name] if ":" in span:
                start, end = span.split(":")
                spans, names = ((int(start), int(end)),), [name]
            case [_, name]:  # a branch or a performer
                spans, names = ((0, 1),), [name]
        costs = zip(spans, names, strict=True)
        return sum(1e-6 if self.engine in name else 1e-4 * (end - start) for (start, end), name in costs)


def fused(model: nn.Module, **more: Any) -> tuple[nn.Module, FusionReport]:
    """A fused copy, on the CPU where no device is given."""
    other = copy.deepcopy(model)
    given: dict[str, Any] = {"device": CPU, "dtype": torch.float32, "image_size": 32, "batch_sizes": (1, 2, 4)}
    return other, fuse(other, **{**given, "tuning": Tuning("off"), **more})


def images(count: int, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.float().cpu() - want).norm() / want.norm())
