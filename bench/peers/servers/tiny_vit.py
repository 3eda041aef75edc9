"""The tiny ViT in plain PyTorch, from a state dict with timm's names, and its preprocessing of raw pixels."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZE, HEADS = 32, 4
RAW_BYTES = SIZE * SIZE * 3
MEAN, STD = 0.5, 0.25
BODY, SHAPE = np.uint8, (SIZE, SIZE, 3)  # of a request, for who declares it

DEVICE_SECONDS = float(os.environ.get("TINY_DEVICE_MS", "0")) / 1e3  # a batch takes this besides, without the CPU


class Block(nn.Module):
    """Attention, then MLP, each after its norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim), "proj": nn.Linear(dim, dim)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, 4 * dim), "fc2": nn.Linear(4 * dim, dim)})

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.attn["qkv"](self.norm1(x)).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.attn["proj"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        y: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return y


class TinyViT(nn.Module):
    """(B, 3, 32, 32) to (B, classes)."""

    def __init__(self, dim: int, patch: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, dim, patch, patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (SIZE // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


def load(path: str | Path) -> TinyViT:
    """The model of a state dict, on one thread."""
    torch.set_num_threads(1)
    state = torch.load(path, weights_only=True)
    dim, _, patch, _ = state["patch_embed.proj.weight"].shape
    depth = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    model = TinyViT(dim, patch, depth, len(state["head.bias"]))
    model.load_state_dict(state)
    return model.eval()


def decode(body: bytes) -> Tensor:
    """uint8 (32, 32, 3) raw to the model's input (3, 32, 32).

    Raises:
        ValueError: another length.
    """
    if len(body) != RAW_BYTES:
        raise ValueError(f"expected {RAW_BYTES} bytes, got {len(body)}")
    pixels = torch.frombuffer(bytearray(body), dtype=torch.uint8).reshape(SIZE, SIZE, 3)
    return (pixels.permute(2, 0, 1).float() / 255 - MEAN) / STD


def classify(model: TinyViT, images: Sequence[Tensor]) -> list[tuple[int, float]]:
    """Best class and its score, for each image."""
    time.sleep(DEVICE_SECONDS)
    with torch.inference_mode():
        scores, classes = model(torch.stack(tuple(images))).softmax(-1).max(-1)
    return list(zip(classes.tolist(), scores.tolist(), strict=True))
