"""The parity tests find known mistakes: each is planted, and the logits must be off."""

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.t2t_vit import T2TViT
from milkweed.models.architectures.vitae.attention import Attention
from milkweed.models.architectures.vitae.normal import NormalCell
from milkweed.models.architectures.vitae.reduction import PerformerAttention, PerformerReduction, TransformerReduction

Plant = Callable[[Any], None]


def set_norm_eps(kind: type[nn.Module], eps: float) -> Plant:
    def plant(model: Any) -> None:
        for cell in model.modules():
            if isinstance(cell, kind):
                for norm in (m for m in cell.modules() if isinstance(m, nn.LayerNorm)):
                    norm.eps = eps

    return plant


def swap_k_and_q(model: Any) -> None:
    for m in model.modules():
        if isinstance(m, PerformerAttention):
            k, q, v = m.kqv.weight.data.chunk(3)
            m.kqv.weight.data = torch.cat([q, k, v])


def scale_by_width(model: Any) -> None:
    for m in model.modules():
        if isinstance(m, Attention):
            dim = m.proj.in_features
            # The same as attending with dim^-0.5 instead of head_dim^-0.5.
            m.qkv.weight.data[:dim] *= m.num_heads**-0.5
            m.qkv.bias.data[:dim] *= m.num_heads**-0.5


def drop_last_activation(model: Any) -> None:
    for m in model.modules():
        if isinstance(m, NormalCell):
            m.PCM[-1] = nn.Identity()


def use_tanh_gelu(model: Any) -> None:
    for m in model.modules():
        if isinstance(m, nn.GELU):
            m.approximate = "tanh"


def last_activation(kind: type[nn.Module]) -> Plant:
    def plant(model: Any) -> None:
        for cell in model.modules():
            if isinstance(cell, kind):
                cell.PCM.append(nn.SiLU())

    return plant


def value_skip(stages: slice, skip: bool) -> Plant:
    def plant(model: Any) -> None:
        for stage in model.layers[stages]:
            stage.RC.attn.attn.value_skip = skip

    return plant


def attend_globally(model: Any) -> None:
    for stage in model.layers[:2]:
        for cell in stage.NC:
            cell.attn.window_size = 28


def scale_by_head(model: Any) -> None:
    model.tokens_to_token.attention1.attn.scale = None


def scale_blocks_by_width(model: Any) -> None:
    for block in model.blocks:
        block.attn.scale = block.attn.proj.in_features**-0.5


def no_value_skip(model: Any) -> None:
    model.tokens_to_token.attention2.attn.value_skip = False


def no_positions(model: Any) -> None:
    model.pos_embed.data.zero_()


TRAPS: dict[str, dict[str, Plant]] = {
    "vitae_basic_tiny": {
        "normal cell norms with eps 1e-5": set_norm_eps(NormalCell, 1e-5),
        "reduction cell norms with eps 1e-6": set_norm_eps(PerformerReduction, 1e-6),
        "kqv read as q, k, v": swap_k_and_q,
        "attention scaled by dim^-0.5": scale_by_width,
        "no activation after the last convolution": drop_last_activation,
        "tanh GELU": use_tanh_gelu,
    },
    "vitaev2_s": {
        "normal cell norms with eps 1e-5": set_norm_eps(NormalCell, 1e-5),
        "reduction cell norms with eps 1e-6": set_norm_eps(TransformerReduction, 1e-6),
        "v1's last activation in normal cells": last_activation(NormalCell),
        "v1's last activation in reduction cells": last_activation(TransformerReduction),
        "value skip in windows": value_skip(slice(0, 2), True),
        "no value skip over all tokens": value_skip(slice(2, 4), False),
        "other windows": attend_globally,
    },
    "t2t_vit_t_14": {
        "norms with eps 1e-6": set_norm_eps(T2TViT, 1e-6),
        "token attention scaled by head": scale_by_head,
        "blocks scaled by width": scale_blocks_by_width,
        "no value skip": no_value_skip,
        "no positions": no_positions,
    },
}


@pytest.fixture(scope="module")
def filled(fill: ModuleType) -> Callable[[str], Any]:
    """Models with the golden weights, each made once; no time is spent on an initialisation that is overwritten."""
    models: dict[str, nn.Module] = {}

    def make(arch: str) -> Any:
        if arch not in models:
            with torch.device("meta"):
                model = create_model(arch)
            models[arch] = fill.fill(model.to_empty(device="cpu"))
        return copy.deepcopy(models[arch])

    return make


@pytest.mark.parametrize(("arch", "trap"), [(arch, trap) for arch, traps in TRAPS.items() for trap in traps])
def test_parity_catches_the_trap(
    arch: str, trap: str, filled: Callable[[str], Any], golden: dict[str, np.ndarray], images: Tensor
) -> None:
    model = filled(arch)
    TRAPS[arch][trap](model)
    with torch.inference_mode():
        got = model(images[:1]).numpy()
    assert np.abs(got - golden[f"{arch}__fp64"][:1]).max() > 3e-5  # parity asks for 1e-5
