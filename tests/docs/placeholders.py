"""The files that the pages' commands speak of, made small: what `dog.jpg`, `photos/` or `deit` stand for."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from milkweed.models import BundleConfig, Label, create_model, save_bundle, select_linears
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.layers.select import layer_specs_for

CLASSES = tuple(Label(f"n{place:08d}", word) for place, word in enumerate(("dog", "cat", "ship", "frog")))
PHOTOS = 8
"""Photos of each class; compressing needs 32."""
PREPROCESS: dict[str, Any] = {
    "size": 32,
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


def make_placeholders(folder: Path) -> None:
    """Fill a folder with all of them."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for place, label in enumerate(CLASSES):
        (folder / "photos" / label.id).mkdir(parents=True)
        for number in range(PHOTOS):
            _photo(rng, place).save(folder / "photos" / label.id / f"{number}.{'png' if number else 'jpg'}")
    for name in ("dog.jpg", "cat.png", "a.jpg", "b.jpg"):
        _photo(rng, 0).resize((300, 200)).save(folder / name)
    _bundle(folder / "deit", 32)
    _bundle(folder / "vit", 48)
    _bundle(folder / "deit-monarch", 32, layers=("mlp",))
    for name in ("deit/3", "vitae/1"):
        shutil.copytree(folder / "deit", folder / "models" / name)
    for name in ("deit/4", "vitae/2"):
        shutil.copytree(folder / "vit", folder / "models" / name)
    _checkpoints(folder)
    np.save(folder / "labels.npy", rng.normal(size=(len(CLASSES), 512)).astype(np.float32))
    (folder / "labels.txt").write_text("".join(f"{label.label}\n" for label in CLASSES))


def _photo(rng: np.random.Generator, place: int) -> Image.Image:
    """Waves, coarser by class."""
    y, x = np.mgrid[0:40, 0:48]
    waves = [128 + 100 * np.sin((x + y * rng.uniform(-1, 1)) / (2.0 + 2 * place) + rng.uniform(0, 6)) for _ in range(3)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def _bundle(path: Path, width: int, layers: Sequence[str] = ()) -> None:
    """A ViT of one block for pictures of 32 px; `layers` of it are Monarch ones."""
    arch_args = {"img_size": 32, "patch_size": 8, "embed_dim": width, "depth": 5, "num_heads": 2}
    arch_args["num_classes"] = len(CLASSES)
    dense = create_model("deit_tiny_patch16_224", **arch_args)
    structure = layer_specs_for(dense, select_linears(dense, layers)) if layers else {}
    model = create_model("deit_tiny_patch16_224", layer_specs=structure, **arch_args)
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=arch_args, structure=structure, preprocess=PREPROCESS)
    save_bundle(path, model, config, CLASSES)


def _checkpoints(folder: Path) -> None:
    """What other programs write."""
    thousand = [*CLASSES, *(Label(f"n{place:08d}", f"thing {place}") for place in range(len(CLASSES), 1000))]
    table = "".join(f"{place}\t{label.id}\t{label.label}\n" for place, label in enumerate(thousand))
    for name in ("imagenet_classes.tsv", "imagenet.tsv"):
        (folder / name).write_text(table)
    save_file(_zeros("deit_tiny_patch16_224"), folder / "deit_tiny.safetensors")
    torch.save({"state_dict": _zeros("vitae_basic_tiny")}, folder / "best.pth.tar")
    torch.save({"state_dict": _zeros("t2t_vit_7")}, folder / "last.ckpt")
    torch.save(_zeros("vit_tiny_patch16_224", img_size=384), folder / "w.pth")
    torch.save(_zeros("resnet50"), folder / "resnet50.pth")
    (folder / "images.json").write_text('{"size": 384, "crop_pct": 1.0}')


def _zeros(arch: str, **arch_args: Any) -> dict[str, torch.Tensor]:
    """Weights that take no time to draw; every answer is a tie."""
    with on_meta():
        model = create_model(arch, **arch_args)
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in model.state_dict().items()}
