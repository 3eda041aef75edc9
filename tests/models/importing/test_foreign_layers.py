"""Structured layers of other codebases compute the same after their conversion."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.kernels.reference import monarch_to_dense
from milkweed.models.errors import CheckpointError
from milkweed.models.importing.foreign_layers import native_layers
from milkweed.models.importing.layer_specs import layer_specs_in
from milkweed.models.layers.select import build_layer, layer_spec_of

SHUFFLED = "blockdiag_32_64_nb4_shuffle"
"""Nothing in its tensors tells it from one that does not shuffle."""

CASES = {
    "fbbfly_32_64_bs8nf2_b4": ("pixelfly", {"rank": 0, "butterfly_size": 8, "n_factors": 2}),
    "fbbfly_64_32_bs8nf2_b4": ("pixelfly", {"rank": 0, "butterfly_size": 8}),
    "fbbfly_pad_30_61_bs4nf2_b8": ("pixelfly", {"rank": 0, "butterfly_size": 4, "block_size": 8}),
    "fbbfly_global_32_32": ("pixelfly", {"rank": 0, "global_size": 4}),
    "fbbflylr_32_64_r8_gate": ("pixelfly", {"rank": 8, "gating": True}),
    "fbbflylr_64_32_r8_nogate": ("pixelfly", {"rank": 8, "gating": False}),
    "monarchlr_32_64_r0.25": ("pixelfly", {"rank": 8, "gating": True, "block_size": 32}),
    "blockdiag_32_64_nb4": ("blockdiag", {"nblocks": 4}),
    "blockdiag_30_61_nb4_pad": ("blockdiag", {"nblocks": 4}),
    SHUFFLED: ("blockdiag", {"nblocks": 4}),
    "lowrank_32_64_r8": ("lowrank", {"rank": 8}),
    "blockdiagglobal_64_64": ("pixelfly", {"rank": 0, "global_size": 8}),
    "blockdiagbutterfly_32_64": ("monarch", {"nblocks": 4, "rank": None}),
}


def load(state: dict[str, Tensor], in_features: int, out_features: int) -> tuple[nn.Module, list[str]]:
    """The layer that a file's tensors describe, with their values, and what is said of it."""
    model = nn.ModuleDict({"fc": nn.Linear(in_features, out_features, bias="bias" in state or "b" in state)})
    state, notes = native_layers("x", model, {f"fc.{key}": tensor for key, tensor in state.items()})
    specs = layer_specs_in("x", model, state)
    layer = build_layer(specs["fc"], dtype=torch.float64) if specs else model["fc"].double()
    own = {key.removeprefix("fc."): tensor for key, tensor in state.items() if not key.endswith("layout")}
    layer.load_state_dict(own, strict=True)
    return layer.requires_grad_(False), notes


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_of_fly_is_converted_exactly(shared: Path, case: str) -> None:
    with np.load(shared / "golden" / "fly_pixelfly.npz") as data:
        arrays = {
            key.removeprefix(f"{case}/"): torch.from_numpy(data[key]) for key in data if key.startswith(f"{case}/")
        }
    state = {key.removeprefix("sd."): tensor for key, tensor in arrays.items() if key.startswith("sd.")}
    layer, _ = load(state, arrays["x"].shape[-1], arrays["y"].shape[-1])
    kind, options = CASES[case]
    assert layer.kind == kind
    assert {name: layer_spec_of(layer).options[name] for name in options} == options
    if case == SHUFFLED:
        layer.shuffle = True
    close(layer(arrays["x"]), arrays["y"])


def test_fly_golden_cases_are_all_there(shared: Path) -> None:
    with np.load(shared / "golden" / "fly_pixelfly.npz") as data:
        assert {key.partition("/")[0] for key in data} - {"layout"} == CASES.keys()


def test_a_block_diagonal_matrix_beside_a_low_rank_one_is_converted() -> None:
    torch.manual_seed(0)
    weight, thin1, thin2, bias = random(4, 16, 6), random(3, 24), random(64, 3), random(64)
    gate = {"gate.weight": random(1, 24), "gate.bias": random(1)}
    low_rank = {"low_rank.lr_weight1": thin1, "low_rank.lr_weight2": thin2}
    layer, notes = load({"bias": bias, "sparse.weight": weight, **low_rank, **gate}, 24, 64)
    assert layer.weight_count == weight.numel() + thin1.numel() + thin2.numel() + 25
    assert notes == ["1 layers in the form of a block-diagonal and a low-rank matrix"]
    x = random(5, 24)
    g = torch.sigmoid(x @ gate["gate.weight"].T + gate["gate.bias"])
    close(layer(x), (1 - g) * (x @ torch.block_diag(*weight).T) + g * (x @ thin1.T @ thin2.T) + bias)


@pytest.mark.parametrize("shape", ["triton", "huggingface"])
def test_block_sparse_layers_of_other_backends_are_converted(shape: str) -> None:
    torch.manual_seed(0)
    layout, blocks = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]), random(8, 4, 4)
    weight = blocks[None] if shape == "triton" else blocks.transpose(1, 2).reshape(32, 4)
    layer, _ = load({"weight": weight, "layout": layout}, 16, 16)
    dense = torch.zeros(4, 4, 4, 4, dtype=torch.float64)
    dense[layout.bool()] = blocks
    x = random(3, 16)
    close(layer(x), x @ dense.transpose(1, 2).reshape(16, 16).T)


@pytest.mark.parametrize(("in_features", "out_features"), [(24, 40), (30, 50), (7, 9)])
def test_a_monarch_matrix_beside_a_low_rank_one_is_converted(in_features: int, out_features: int) -> None:
    torch.manual_seed(0)
    p, s = -(-in_features // 4), -(-out_features // 4)
    w1, w2 = random(4, p, p), random(4, s, p)
    low_rank = {"low_rank.lr_weight1": random(2, in_features), "low_rank.lr_weight2": random(out_features, 2)}
    layer, notes = load({"sparse.blkdiag1": w1, "sparse.blkdiag2": w2, **low_rank}, in_features, out_features)
    assert "kept as dense blocks, exact but not small" in notes[0]
    x = random(3, in_features)
    dense = monarch_to_dense(w1, w2, out_features, in_features)
    close(layer(x), (x @ dense.T + x @ low_rank["low_rank.lr_weight1"].T @ low_rank["low_rank.lr_weight2"].T) / 2)


def test_blasts_monarch_matrices_of_any_rank_are_converted() -> None:
    torch.manual_seed(0)
    w1, w2, bias = random(4, 12, 6), random(4, 8, 12), random(32)  # rank 3 a sub-block, fly would have 6/4
    layer, notes = load({"w1": w1, "w2": w2, "bias": bias}, 24, 32)
    assert (layer.kind, layer.rank) == ("monarch", 3)
    assert notes == ["1 layers in the form of BLAST's Monarch matrices"]
    x = random(5, 24)
    blocks = torch.einsum("kqp,bkp->bkq", w1, x.view(5, 4, 6)).flatten(1)
    mixed = blocks.view(5, 12, 4).transpose(1, 2)  # coordinate a goes to block a mod 4
    close(layer(x), torch.einsum("lsr,blr->bsl", w2, mixed).reshape(5, 32) + bias)


@pytest.mark.parametrize(("K", "J"), [(4, 4), (3, 6)])
def test_flys_butterfly_of_any_blocks_is_converted(K: int, J: int) -> None:
    """Rows of w1 lie block by block of w2 there, rank by rank here; other numbers of blocks become a dense layer."""
    torch.manual_seed(0)
    b1, p, s = 2, 24 // K, 5
    w1, w2 = random(K, J * b1, p), random(J, s, K * b1)
    layer, notes = load({"w1_bfly": w1, "w2_bfly": w2}, 24, J * s)
    x = random(3, 24)
    inner = torch.einsum("kjtp,bkp->bjkt", w1.view(K, J, b1, p), x.view(3, K, p)).flatten(2)
    close(layer(x), torch.einsum("jsr,bjr->bsj", w2, inner).reshape(3, J * s))
    assert isinstance(layer, nn.Linear) == (K != J)
    assert ("are dense now" in notes[0]) == (K != J)


def test_compute_better_spents_monarch_and_btt_are_converted() -> None:
    torch.manual_seed(0)
    w1, w2, bias = random(4, 6, 6), random(4, 10, 6), random(40)
    layer, _ = load({"op_params.0": w1, "op_params.1": w2, "b": bias}, 24, 40)
    x = random(3, 24)
    assert layer.kind == "monarch"
    close(layer(x), F.linear(x, monarch_to_dense(w1, w2, 40, 24), bias))
    m0, m1, n0, n1, r = 4, 6, 5, 8, 2
    first, second = random(m1, m0, n0 * r), random(n0, m1 * r, n1)
    layer, notes = load({"op_params.0": first, "op_params.1": second, "b": bias}, 24, 40)
    inner = torch.einsum("bki,kic->kbc", x.view(3, m1, m0), first).view(m1, 3, n0, r).permute(2, 1, 0, 3).flatten(2)
    close(layer(x), torch.einsum("vbc,vcu->bvu", inner, second).reshape(3, 40) + bias)
    assert isinstance(layer, nn.Linear)
    assert "compute-better-spent's matrices are dense now" in notes[0]


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"op_params.0": (4, 4, 4), "op_params.1": (4, 4, 4)}, "compute-better-spent's matrices"),  # could be either
        ({"op_params.0": (4, 5, 4), "op_params.1": (4, 4, 4)}, "compute-better-spent's matrices"),
        ({"w1_bfly": (4, 5, 4), "w2_bfly": (4, 4, 4)}, "fly's BlockdiagButterflyLinear"),
        ({"w1_bfly": (2, 4, 3), "w2_bfly": (4, 4, 2)}, "fly's BlockdiagButterflyLinear"),
        ({"w1": (4, 4), "w2": (4, 4)}, "BLAST's Monarch matrices"),
        ({"weight": (8, 4), "layout": (1, 1)}, "fly's block-sparse matrices"),
        (
            {
                "sparse.blkdiag1": (4, 4, 3),
                "sparse.blkdiag2": (4, 4, 3),
                "low_rank.lr_weight1": (2, 16),
                "low_rank.lr_weight2": (16, 2),
            },
            "a Monarch and a low-rank matrix",
        ),
    ],
)
def test_tensors_that_fit_no_known_form_are_refused(state: dict[str, Any], name: str) -> None:
    tensors = {key: torch.ones(shape) for key, shape in state.items()}
    with pytest.raises(CheckpointError, match=r"^x: fc\.[^\n]*$") as caught:
        load(tensors, 16, 16)
    assert f"are no {name} layer of 16 inputs and 16 outputs" in str(caught.value)
