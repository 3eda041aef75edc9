"""What the inner half of a Monarch MLP is for, what it is refused for, and its impl."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from milkweed.kernels.chain_ir import Add, Gelu, Problem, evaluate
from milkweed.kernels.impls.triton import GluonMlp, TritonMlp
from milkweed.kernels.shapes import MonarchShape
from milkweed.kernels.triton import linear as triton_module
from milkweed.kernels.triton.inner import ROWS, InnerShape
from milkweed.kernels.triton.linear import triton_mlp
from milkweed.kernels.triton.tiles import DeviceProperties
from milkweed.kernels.tuning.verify import relative_error

from ..layers import monarch
from .gluon.inner_cases import HOPPER, SHAPES, Case


@pytest.mark.parametrize("name", SHAPES)
def test_numbers_are_known_before_the_layers_are_packed(name: str) -> None:
    case = SHAPES[name]
    narrow, wide, rank = case.narrow, case.narrow * case.ratio, case.rank or case.narrow
    fc1, fc2 = MonarchShape(4, rank, narrow, 4, wide, rank), MonarchShape(4, rank, wide, 4, narrow, rank)
    shape = InnerShape.sorted(fc1, fc2, 4 * wide)
    assert shape == InnerShape.of(*case.layers)
    assert shape.refusal(case.tile) is None
    assert shape.device_refusal(case.tile, ROWS[case.tile], torch.bfloat16, HOPPER) is None


VIT_B = InnerShape((4, 4, 4), 192, 192, 192)


@pytest.mark.parametrize(
    ("shape", "tile", "words"),
    [
        (VIT_B, 2, "inner tile 2: there are 2"),
        (replace(VIT_B, nblocks=(4, 2, 4)), 0, r"nblocks \(4, 2, 4\): the inner half is for 4"),
        (replace(VIT_B, hidden=96), 0, "blocks of 192, 96, 192 features are not multiples of 64"),
        (replace(VIT_B, hidden=0), 0, "blocks of 192, 0, 192 features are not multiples of 64"),
        (replace(VIT_B, outputs=256), 1, "blocks of 256 outputs: tiles of 192 rows take 192"),
    ],
)
def test_shapes_are_refused_with_a_reason(shape: InnerShape, tile: int, words: str) -> None:
    assert re.fullmatch(words, str(shape.refusal(tile)))


def test_hidden_features_that_do_not_fill_blocks_are_none() -> None:
    fc1, fc2 = MonarchShape(4, 192, 192, 4, 768, 192), MonarchShape(4, 192, 768, 4, 192, 192)
    assert InnerShape.sorted(fc1, fc2, 3072) == VIT_B
    assert InnerShape.sorted(fc1, fc2, 3071).hidden == 0
    assert InnerShape.sorted(fc1, replace(fc2, p=800), 3072).hidden == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": torch.float16}, "dtype torch.float16: the inner half is for bfloat16"),
        ({"device": DeviceProperties((8, 0), 166912)}, "compute capability 8.0: the inner half is for 9.0, Hopper"),
        ({"device": DeviceProperties((10, 0), 232448)}, "compute capability 10.0: the inner half is for 9.0, Hopper"),
        ({"device": DeviceProperties((9, 0), 101376)}, "inner tile 0 needs 180352 bytes of shared memory, .* 101376"),
        ({"rows": 127}, "tiles of 128 rows are not for 127 rows"),
    ],
)
def test_devices_are_refused_with_a_reason(change: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"tile": 0, "rows": 128, "dtype": torch.bfloat16, "device": HOPPER}
    assert VIT_B.device_refusal(**usual) is None
    assert re.fullmatch(words, str(VIT_B.device_refusal(**usual | change)))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "the package triton is not installed"),
        ("3.5.1", "triton 3.5.1: 3.6 or later is needed"),
        ("3.6.0", None),
        ("3.9.0+git1", None),
        ("3.10.0", "triton 3.10.0: the kernels in Gluon are checked with 3.6 to 3.9"),
    ],
)
def test_other_versions_of_triton_are_refused(
    version: str | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_module, "find_spec", lambda name: version and object())
    monkeypatch.setattr(triton_module, "version", lambda name: version)
    monkeypatch.setattr(triton_module, "takes_driver_module", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("milkweed.kernels.triton.linear.device_properties", lambda device: HOPPER)
    segment = [monarch(256, 1024, nblocks=4), Gelu(), monarch(1024, 256, nblocks=4)]
    refusal = GluonMlp(0).refuses(segment, Problem(torch.device("cuda"), torch.bfloat16, 8, 197))
    assert refusal == words


def test_the_impl_gives_the_chain_and_shares_its_weights_with_the_one_in_triton() -> None:
    problem = Problem(torch.device("cpu"), torch.bfloat16, 2, 5)
    segment = [monarch(256, 1024, nblocks=4), Gelu(), monarch(1024, 256, nblocks=4), Add()]
    impl, x, residual = GluonMlp(1, on_cpu=True), *torch.randn(2, 2, 5, 256).bfloat16()
    assert impl.refuses(segment, problem) is None
    runner = impl.build(segment, problem)
    assert relative_error(runner(x, residual), evaluate(segment, x.double(), residual.double())) <= 6e-3
    assert runner.packed == TritonMlp(0, on_cpu=True).build(segment, problem).packed


def test_the_operator_refuses_what_it_would_compute_wrong() -> None:
    fc1, fc2 = Case(1, 64).layers
    x = torch.randn(3, 256).bfloat16()
    assert torch.equal(triton_mlp(x, fc1, fc2, inner=0), triton_mlp(x, fc1, fc2))
    with pytest.raises(ValueError, match="inner tile 2: there are 2"):
        triton_mlp(x, fc1, fc2, inner=2)
    fc1, fc2 = Case(1, 96).layers
    with pytest.raises(ValueError, match="blocks of 96, 96, 96 features are not multiples of 64"):
        triton_mlp(torch.randn(3, 384).bfloat16(), fc1, fc2, inner=0)
