"""Makes the demo model: a small ViTAE trained on CIFAR-10, once with Monarch MLPs and once dense, by one recipe.

    python -m milkweed.bench.demo_model train DATA monarch.pt --structure monarch
    python -m milkweed.bench.demo_model train DATA dense.pt --structure dense

DATA holds `train/<class>/*.jpg` and `test/<class>/*.jpg`. Everything that decides the result is in `Recipe`; a run
is repeatable on one machine with one thread. `milkweed.bench.demo_bundle` makes the bundle of the two.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.monarch import MonarchLinear
from ..models.vitae import ViTAE

# CIFAR-10's channel statistics, the usual ones.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

ARCH_ARGS: dict[str, Any] = {
    "img_size": 32,
    "embed_dims": [32, 32, 64],
    "token_dims": [32, 64, 128],
    "downsample": [2, 2, 1],
    "kernel_sizes": [3, 3, 3],
    "dilations": [[1, 2, 3], [1, 2], [1, 2]],
    "depths": [0, 0, 3],
    "num_heads": [1, 1, 4],
    "mlp_ratio": 2,
    "groups": [1, 1, 16],
}
NBLOCKS = 4


@dataclass(frozen=True)
class Recipe:
    """What decides the result of a run. Crop (4 px of reflection) and flip are the only augmentations."""

    structure: str
    epochs: int = 12
    batch_size: int = 128
    peak_lr: float = 3e-3
    warmup_fraction: float = 0.15
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0


def build(structure: str) -> ViTAE:
    """The demo architecture, its NormalCell MLPs Monarch (nblocks 4) or dense."""
    model = ViTAE(num_classes=10, **ARCH_ARGS)
    if structure == "monarch":
        for cell in model.get_submodule("layers.2.NC").children():
            mlp = cell.get_submodule("mlp")
            for name in ("fc1", "fc2"):
                dense = mlp.get_submodule(name)
                assert isinstance(dense, nn.Linear)
                setattr(mlp, name, MonarchLinear(dense.in_features, dense.out_features, nblocks=NBLOCKS))
    return model


def read_images(folder: Path) -> tuple[Tensor, Tensor, list[str]]:
    """All images of a folder-per-class tree: uint8 (N, 3, 32, 32), labels int64 (N,), class names in sorted order."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir())
    pixels, labels = [], []
    for label, name in enumerate(names):
        for path in sorted((folder / name).iterdir()):
            with Image.open(path) as image:
                pixels.append(np.asarray(image.convert("RGB")))
            labels.append(label)
    stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    return stacked, torch.tensor(labels), names


def normalise(pixels: Tensor) -> Tensor:
    """uint8 (N, 3, H, W) -> float32, as the loaders do."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (pixels.float() / 255 - mean) / std


def batches(pixels: Tensor, labels: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, augmented batches; the last short one is dropped."""
    order = torch.randperm(len(pixels), generator=generator)
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        padded = F.pad(pixels[chosen].float(), (4, 4, 4, 4), mode="reflect").to(torch.uint8)
        tops, lefts = torch.randint(0, 9, (2, size), generator=generator)
        flips = torch.rand(size, generator=generator) < 0.5
        crops = [
            image[:, t : t + 32, l : l + 32].flip(2) if flip else image[:, t : t + 32, l : l + 32]
            for image, t, l, flip in zip(padded, tops.tolist(), lefts.tolist(), flips.tolist(), strict=True)
        ]
        yield normalise(torch.stack(crops)), labels[chosen]


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """Linear warm-up, then cosine to zero."""
    warmup = recipe.warmup_fraction * total
    if step < warmup:
        return recipe.peak_lr * (step + 1) / warmup
    return recipe.peak_lr * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@torch.inference_mode()
def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    """Top-1 in percent."""
    model.eval()
    hits = sum(
        int((model(normalise(p)).argmax(1) == y).sum())
        for p, y in zip(pixels.split(250), labels.split(250), strict=True)
    )
    return 100 * hits / len(labels)


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; no decay on norms and biases."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.99), fused=True)


def train(recipe: Recipe, data: Path, out: Path) -> dict[str, Any]:
    """Train by `recipe`, write weights and record to `out` after every epoch, return the record."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = build(recipe.structure)
    optimizer = _optimizer(model, recipe)
    pixels, labels, names = read_images(data / "train")
    test_pixels, test_labels, _ = read_images(data / "test")
    total = recipe.epochs * (len(pixels) // recipe.batch_size)
    step, start, record = 0, time.monotonic(), {}
    for epoch in range(recipe.epochs):
        model.train()
        losses = []
        for x, y in batches(pixels, labels, recipe.batch_size, generator):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step, total)
            loss = F.cross_entropy(model(x), y, label_smoothing=recipe.label_smoothing)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            step += 1
        record = {
            "recipe": asdict(recipe),
            "arch_args": ARCH_ARGS,
            "classes": names,
            "epochs_done": epoch + 1,
            "train_loss": sum(losses) / len(losses),
            "test_top1": accuracy(model, test_pixels, test_labels),
            "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "seconds": round(time.monotonic() - start),
            "torch": str(torch.__version__),
        }
        torch.save({"state_dict": model.state_dict(), "record": record}, out)
        print(json.dumps({k: record[k] for k in ("epochs_done", "train_loss", "test_top1", "seconds")}), flush=True)
    return record


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train"])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--structure", choices=["monarch", "dense"], required=True)
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(Recipe(args.structure, epochs=args.epochs, seed=args.seed), args.data, args.out)


if __name__ == "__main__":
    main()
