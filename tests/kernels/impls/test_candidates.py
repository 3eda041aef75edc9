"""How much the tuner does for one MLP on a GPU that is not there.

`pytest tests/kernels/impls/test_candidates.py -s` prints the counts.
"""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from milkweed.kernels.chain_ir import Add, ChainOp, Gelu, LayerNorm, Monarch, Problem, kinds
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.triton import AROUND_INNER
from milkweed.kernels.triton.launch import linear_launches, mlp_launches
from milkweed.kernels.triton.layout import sort_layer, sort_mlp
from milkweed.kernels.triton.tiles import VARIANTS, device_properties
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.plan import every_span
from milkweed.kernels.tuning.tuner import fuses_next

from .. import layers
from ..triton.compiling import specialised, without_memory

CUDA = torch.device("cuda")
BATCHES = (1, 8, 32, 128)

monarch = partial(layers.monarch, nblocks=4)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100, as far as impls ask about it before they launch anything."""
    properties = SimpleNamespace(major=9, minor=0, shared_memory_per_block_optin=232448)
    loaded = SimpleNamespace(loaded=True, reason="loaded")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("milkweed.kernels.impls.native.native_status", lambda device: loaded)
    for name in ("triton.linear.missing_for_triton", "triton.linear.missing_for_gluon"):
        monkeypatch.setattr(f"milkweed.kernels.{name}", lambda: None)


class TritonKernels:
    """Finds the kernels that Triton compiles for the segments of an MLP, on tensors without memory."""

    def __init__(self, fc1: Monarch, fc2: Monarch) -> None:
        one, two = (sort_layer(fc.w1, fc.w2, fc.bias, fc.out_features, torch.bfloat16) for fc in (fc1, fc2))
        self.layers = {fc1: without_memory(one), fc2: without_memory(two)}
        self.mlp = tuple(map(without_memory, sort_mlp(one, two, fc1.out_features)))

    def __call__(self, segment: tuple[ChainOp, ...], family: str, tile: int, rows: int) -> set[str]:
        own = [operator for operator in segment if isinstance(operator, Monarch)]
        x, y = (torch.empty(rows, width, dtype=torch.bfloat16, device="meta") for width in widths(own))
        residual = y if kinds(segment)[-1] == "add" else None
        inner = tile if family == "gluon_mlp" else None
        more = (y, VARIANTS[tile if inner is None else AROUND_INNER], device_properties.__wrapped__(CUDA))
        if len(own) == 2:
            launches = mlp_launches(x, *self.mlp, residual, *more, inner)
        else:
            launches = linear_launches(x, self.layers[own[0]], residual, int("gelu" in kinds(segment)), *more)
        return set(map(specialised, launches))


def widths(own: list[Monarch]) -> tuple[int, int]:
    return own[0].in_features, own[-1].out_features


@pytest.mark.slow
def test_work_of_the_tuner_for_an_mlp_of_vit_b(hopper: None) -> None:
    fc1, fc2 = monarch(768, 3072), monarch(3072, 768)
    chain = Chain([LayerNorm(torch.ones(768), torch.zeros(768), 1e-6), fc1, Gelu(), fc2, Add()])
    timed: Counter[str] = Counter()
    kernels_of, compiled = TritonKernels(fc1, fc2), set[str]()
    for batch in BATCHES:
        problem = Problem(CUDA, torch.bfloat16, batch, 197)
        for span in every_span(len(chain)):
            segment = chain.segment(span)
            for impl in all_impls():
                if impl.refuses(segment, problem) is None and not fuses_next(impl, chain, span, problem):
                    family, _, tile = impl.name.partition(":")
                    timed[family] += 1
                    if family.startswith(("triton", "gluon")):
                        compiled |= kernels_of(segment, family, int(tile), problem.rows)
    print(f"\n{len(compiled)} Triton kernels compiled, {timed.total()} candidates timed: {dict(timed)}")
    assert len(compiled) == 20
    assert timed == {"triton": 24, "triton_mlp": 12, "gluon_mlp": 8, "dense": 8, "torch": 36}
