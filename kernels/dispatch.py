"""Chooses the implementation of a Monarch product: one place, before anything is launched, and printable."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decision:
    """Which implementation runs, and why in a few words."""

    implementation: str  # "feature_major" | "batched"
    reason: str

    def __str__(self) -> str:
        return f"{self.implementation} ({self.reason})"


def decide(device: torch.device, *, differentiable: bool) -> Decision:
    """The implementation for tensors on `device`.

    Args:
        device: where input and factors are.
        differentiable: gradients are wanted.
    """
    if differentiable:
        return Decision("batched", "gradients wanted")
    if device.type == "cpu":
        return Decision("feature_major", "CPU inference: permutations are strides")
    return Decision("batched", f"plain PyTorch on {device.type}: a fused model chooses for itself")


def wants_gradients(*tensors: Tensor | None) -> bool:
    """True when autograd would record an operation on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
