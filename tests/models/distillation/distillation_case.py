"""A tiny model, dense and projected, with images to train on; as a program: a distillation that kills itself.

python distillation_case.py STATE PHASE STEP
"""

import copy
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.compress import project_layer
from milkweed.models.distillation import DistillationPlan, distill
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.progress import Progress
from milkweed.models.training import TensorSource

VIT: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 6}
PLAN = DistillationPlan(
    epochs=3,
    block_epochs=2,
    batch_size=8,
    lr=3e-3,
    block_lr=3e-3,
    betas=(0.9, 0.99),
    feature_weight=1.0,
    mixup=0.5,
    cutmix=0.0,
    ema_decay=0.9,
    amp="none",
    evaluate_every=1,
    patience=5,
)


@dataclass(frozen=True)
class Case:
    """A dense model, its projection, images to learn on, and images to be judged on."""

    dense: nn.Module
    compressed: nn.Module
    images: Tensor
    held_out: tuple[Tensor, ...]

    def source(self, images: Tensor | None = None) -> TensorSource:
        return TensorSource(self.images if images is None else images, None, batch_size=8, seed=7)


def make_case() -> Case:
    """The same at every call: weights large enough that the projection costs answers."""
    torch.manual_seed(0)
    dense = create_model("deit_tiny_patch16_224", **VIT).eval()
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 8)
    dense.requires_grad_(False)
    compressed = copy.deepcopy(dense)
    for name, layer in layer_specs_for(compressed, select_linears(compressed, ["mlp"]), nblocks=4).items():
        project_layer(compressed, name, layer)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(40, 3, 16, 16, generator=generator)
    held_out = torch.randn(24, 3, 16, 16, generator=generator)
    return Case(dense, compressed.eval(), images, tuple(held_out.split(16)))


def main(state: Path, phase: str, step: int) -> None:
    case = make_case()

    def die(now: str, done: int, _total: int) -> None:
        if (now, done) == (phase, step):
            os.kill(os.getpid(), signal.SIGKILL)

    distill(
        case.compressed,
        case.dense,
        case.source(),
        plan=PLAN,
        held_out=case.held_out,
        state=state,
        progress=Progress(step=die),
        save_every_seconds=0,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
