"""The chains of a block compute the block; parts that no chain holds are refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.chain_ir import Problem, evaluate, kinds
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.tuning.default_plan import untuned_chain
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.vitae.normal import NormalCell
from milkweed.models.layers.blockdiag import BlockdiagLinear
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.serving.fused.chains import BlockChains, NotFusable, take_apart

HALF = ("norm", "monarch", "attention", "dense", "add")


def vit_block(**arch_args: Any) -> Any:
    torch.manual_seed(0)
    args = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 3}
    block = create_model("vit_tiny_patch16_224", **args, **arch_args).blocks[0]
    for parameter in block.parameters():  # biases and scales that a mistake would show in
        nn.init.normal_(parameter, std=0.5)
    return block.double()


def chains_of(block: nn.Module) -> BlockChains:
    chains = take_apart(block)
    assert chains is not None
    return chains


def value(chains: BlockChains, x: Tensor, residual: Tensor | None = None) -> Tensor:
    x = evaluate(chains.attention.operators, x, x if residual is None else residual)
    return evaluate(chains.mlp.operators, x, x)


def monarch_like(linear: nn.Linear, nblocks: int, rank: int | None = None) -> MonarchLinear:
    layer = MonarchLinear(linear.in_features, linear.out_features, linear.bias is not None, nblocks=nblocks, rank=rank)
    return layer.double()


@pytest.mark.parametrize("args", [{}, {"init_values": 0.5}, {"qkv_bias": False}], ids=["plain", "scaled", "no bias"])
@torch.no_grad()
def test_the_chains_of_a_vit_block_compute_the_block(args: dict[str, Any]) -> None:
    block = vit_block(**args)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    chains = chains_of(block)
    torch.testing.assert_close(value(chains, x), block(x), rtol=1e-12, atol=1e-12)
    assert chains.cell is None
    assert kinds(chains.attention.operators) == ("norm", "dense", "attention", "dense", "add")
    assert kinds(chains.mlp.operators) == ("norm", "dense", "gelu", "dense", "add")


@pytest.mark.parametrize("nblocks", [4, 5], ids=["divisible", "padded"])
@torch.no_grad()
def test_monarch_layers_and_a_layer_scale_behind_them_are_kept(nblocks: int) -> None:
    block = vit_block(init_values=0.5)
    block.attn.qkv = monarch_like(block.attn.qkv, 4)
    block.attn.proj = monarch_like(block.attn.proj, nblocks)
    block.mlp.fc1, block.mlp.fc2 = monarch_like(block.mlp.fc1, 2, rank=3), monarch_like(block.mlp.fc2, nblocks)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    chains = chains_of(block)
    torch.testing.assert_close(value(chains, x), block(x), rtol=1e-12, atol=1e-12)
    assert kinds(chains.attention.operators) == ("norm", "monarch", "attention", "monarch", "add")
    assert kinds(chains.mlp.operators) == ("norm", "monarch", "gelu", "monarch", "add")


@pytest.mark.parametrize("shuffle", [False, True])
@torch.no_grad()
def test_block_diagonal_layers_are_kept_where_their_blocks_divide_the_widths(shuffle: bool) -> None:
    block = vit_block(init_values=0.5)
    block.mlp.fc1 = BlockdiagLinear(24, 96, nblocks=4, shuffle=shuffle).double()
    block.mlp.fc2 = BlockdiagLinear(96, 24, nblocks=2, shuffle=shuffle).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    chains = chains_of(block)
    torch.testing.assert_close(value(chains, x), block(x), rtol=1e-12, atol=1e-12)
    assert kinds(chains.mlp.operators) == ("norm", "blockdiag", "gelu", "blockdiag", "add")
    problem = Problem(torch.device("cpu"), torch.float64, 2, 5)
    fused = untuned_chain(chains.mlp, problem, all_impls())
    torch.testing.assert_close(fused(x, x), evaluate(chains.mlp.operators, x, x))
    block.mlp.fc1 = BlockdiagLinear(24, 96, nblocks=5)
    with pytest.raises(NotFusable, match="5 blocks do not divide"):
        take_apart(block)


@pytest.mark.parametrize("class_token", [False, True])
@torch.no_grad()
def test_the_chains_and_the_branch_of_a_normal_cell_compute_the_cell(class_token: bool) -> None:
    torch.manual_seed(0)
    cell = NormalCell(16, 4, 2, 4, shallow=class_token, class_token=class_token).double().eval()
    cell.attn.qkv = monarch_like(cell.attn.qkv, 4)
    x = torch.randn(2, 9 + class_token, 16, dtype=torch.float64)
    chains = chains_of(cell)
    torch.testing.assert_close(value(chains, x, x + cell._branch(x)), cell(x), rtol=1e-12, atol=1e-12)
    assert chains.cell is cell
    assert kinds(chains.attention.operators) == HALF


def odd(change: Callable[[Any], None], **args: Any) -> Any:
    block = vit_block(**args)
    change(block)
    return block


def of_another_type() -> Any:
    """The same parts, and nobody knows what it does with them."""
    block = vit_block()
    block.__class__ = type("OtherBlock", (type(block),), {})
    return block


REFUSED = {
    "qk_norm": (lambda: vit_block(qk_norm=True), "attn.q_norm is a LayerNorm"),
    "tanh": (lambda: odd(lambda b: setattr(b.mlp, "act", nn.GELU(approximate="tanh"))), "not the exact GELU"),
    "relu": (lambda: odd(lambda b: setattr(b.mlp, "act", nn.ReLU())), "not the exact GELU"),
    "norm": (lambda: odd(lambda b: setattr(b, "norm1", nn.RMSNorm(24))), "a norm is a RMSNorm"),
    "bare norm": (lambda: odd(lambda b: setattr(b, "norm1", nn.LayerNorm(24, bias=False))), "without weight or bias"),
    "mlp norm": (lambda: odd(lambda b: setattr(b.mlp, "norm", nn.LayerNorm(96))), "mlp.norm is a LayerNorm"),
    "gate": (lambda: odd(lambda b: setattr(b.attn, "gate", nn.Linear(24, 24))), "attn.gate is a Linear"),
    "part": (lambda: odd(lambda b: setattr(b.attn, "sink", nn.Linear(24, 24))), "a part 'sink' that no chain holds"),
    "scale": (lambda: odd(lambda b: setattr(b, "ls1", nn.Linear(24, 24))), "layer scale is a Linear"),
    "linear": (lambda: odd(lambda b: setattr(b.mlp, "fc1", nn.Bilinear(2, 2, 2))), "a linear layer is a Bilinear"),
    "heads": (lambda: odd(lambda b: setattr(b.attn, "num_heads", 7)), "attention of 7 heads on a qkv of 72"),
    "type": (of_another_type, "no rule for blocks of this type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_that_a_chain_cannot_hold_is_refused_with_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(NotFusable, match=reason):
        take_apart(make())
