"""The CUDA kernels as impls: what they take, what they say when not, and their CPU implementations' values."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from milkweed.kernels.chain_ir import Add, ChainOp, Dense, Gelu, LayerNorm, Problem, SelfAttention, evaluate
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.base import OTHER_KIND
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.triton import triton_impls
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.default_plan import PREFERRED, untuned_plan
from milkweed.kernels.tuning.tuner import tune_chain

from .. import layers
from ..layers import normal

CPU = torch.device("cpu")
IMPLS = {impl.name: impl for impl in native_impls(on_cpu=True)}
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3}


pytestmark = pytest.mark.usefixtures("one_thread")


monarch = partial(layers.monarch, nblocks=4)

MLP = layers.mlp()
SEGMENTS: dict[str, list[list[ChainOp]]] = {
    "native_mlp": [MLP, MLP[:4], MLP[1:], MLP[1:4]],
    "native_attention": [[SelfAttention(2, 32, 0.2)]],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kernel", SEGMENTS)
def test_every_segment_gives_the_values(kernel: str, dtype: torch.dtype) -> None:
    problem = Problem(CPU, dtype, 2, 19)
    for segment in SEGMENTS[kernel]:
        chain = Chain(segment)
        x = torch.randn(2, 19, chain.widths[0], generator=torch.Generator().manual_seed(6)).to(dtype)
        residual = torch.randn(2, 19, chain.widths[-1], generator=torch.Generator().manual_seed(7)).to(dtype)
        want = evaluate(segment, x.double(), residual.double())
        for name, impl in IMPLS.items():
            if not name.startswith(kernel):
                continue
            assert impl.refuses(segment, problem) is None
            got = impl.build(segment, problem)(x, residual)
            assert got.dtype == dtype
            assert (got.double() - want).norm() <= TOLERANCE[dtype] * want.norm(), (name, chain.describe())


def test_tile_variants_share_their_weights() -> None:
    problem = Problem(CPU, torch.bfloat16, 2, 19)
    runners = [impl.build(MLP, problem) for name, impl in IMPLS.items() if name.startswith("native_mlp")]
    assert len(runners) == 4
    assert len({tuple(map(id, runner.tensors)) for runner in runners}) == 1


@pytest.mark.parametrize(
    ("name", "segment", "dtype", "reason"),
    [
        ("native_mlp:2", MLP, torch.float32, "not bfloat16 or float16"),
        ("native_mlp:2", [monarch(1024, 2048), Gelu(), monarch(2048, 1024)], torch.bfloat16, "width 1024"),
        ("native_mlp:2", layers.mlp(nblocks=2), torch.bfloat16, "nblocks 2, 2, 2, 2; all must be 4"),
        ("native_mlp:2", layers.mlp(nblocks=8), torch.bfloat16, "nblocks 8, 8, 8, 8; all must be 4"),
        ("native_mlp:2", [monarch(64, 128), Gelu(), monarch(128, 32)], torch.bfloat16, "64 features go in and 32 come"),
        ("native_attention:0", [SelfAttention(2, 48, 0.2)], torch.bfloat16, "head dim 48"),
        ("native_mlp:2", MLP[:3], torch.bfloat16, OTHER_KIND),
        ("native_attention:0", [SelfAttention(2, 32, 0.2), MLP[3]], torch.bfloat16, OTHER_KIND),
    ],
)
def test_what_they_do_not_take_they_name(name: str, segment: list[ChainOp], dtype: torch.dtype, reason: str) -> None:
    refusal = IMPLS[name].refuses(segment, Problem(CPU, dtype, 2, 19))
    assert refusal is not None
    assert reason in refusal


def test_without_the_library_they_refuse_with_its_reason() -> None:
    problem = Problem(CPU, torch.bfloat16, 2, 19)
    refusals = {
        impl.refuses(segment, problem)
        for impl in all_impls()
        if impl.name.startswith("native_")
        for segments in SEGMENTS.values()
        for segment in segments
    } - {OTHER_KIND}
    assert len(refusals) == 1
    (refusal,) = refusals
    assert refusal is not None
    assert refusal.startswith(("device is cpu", "this PyTorch is built without CUDA"))


def test_the_tuner_takes_them_where_they_are_fastest() -> None:
    def measure(call: object) -> float:
        return 1.0 if "0:5 native_mlp" in str(call) or str(call).startswith("plan 0b0000 native") else 2.0

    impls = [*IMPLS.values(), *(e for e in all_impls() if not e.name.startswith("native_"))]
    tuned = tune_chain(Chain(MLP), Problem(CPU, torch.bfloat16, 2, 19), impls, measure=measure)
    assert str(tuned.plan) == "0b0000 native_mlp:2"
    assert tuned.discarded == 0


def test_the_tuner_takes_attention_that_knows_sizes() -> None:
    chain, problem = Chain([SelfAttention(2, 32, 0.2, sized=True)]), Problem(CPU, torch.bfloat16, 2, 19)
    impls = [*IMPLS.values(), *(e for e in all_impls() if not e.name.startswith("native_"))]
    tuned = tune_chain(chain, problem, impls, measure=lambda call: 1.0 if "native" in str(call) else 2.0)
    assert "native_attention" in str(tuned.plan)
    assert tuned.discarded == 0
    for impl in ("native_attention:0", "torch"):
        runner = next(e for e in impls if e.name == impl).build(chain.operators, problem)
        with pytest.raises(ValueError, match="knows sizes, but none was given"):
            runner(torch.zeros(2, 19, 192, dtype=torch.bfloat16))


def test_an_untuned_plan_takes_one_launch_for_an_mlp_and_triton_for_a_wide_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PREFERRED, "cpu", PREFERRED["cuda"])
    others = [impl for impl in all_impls() if not impl.name.startswith(("native_", "triton"))]
    impls = [*others, *triton_impls(on_cpu=True), *IMPLS.values()]
    problem = Problem(CPU, torch.bfloat16, 2, 19)
    assert str(untuned_plan(Chain(MLP), problem, impls)) == "0b0000 native_mlp:2"
    norm = LayerNorm(normal(768, seed=1), normal(768, seed=2), 1e-6)
    wide = Chain([norm, monarch(768, 1024), Gelu(), monarch(1024, 768), Add()])
    assert str(untuned_plan(wide, problem, impls)) == "0b0001 torch | triton_mlp:0"
    assert str(untuned_plan(Chain(layers.mlp(nblocks=8)), problem, impls)) == "0b0001 torch | triton_mlp:0"
    without = [impl for impl in impls if not impl.name.startswith("triton")]
    assert str(untuned_plan(Chain(layers.mlp(nblocks=2)), problem, without)) == "0b0101 torch | dense | dense"
    attention = Chain([MLP[0], Dense(normal(192, 64, seed=8), None), SelfAttention(2, 32, 0.2), monarch(64, 64), Add()])
    plan = "0b0111 torch | dense | native_attention:0 | triton:0"
    assert str(untuned_plan(attention, problem, impls)) == plan


def test_a_tile_that_a_device_has_no_room_for_is_refused_before_it_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = SimpleNamespace(loaded=True, reason="loaded")
    monkeypatch.setattr("milkweed.kernels.impls.native.native_status", lambda device: loaded)
    device = SimpleNamespace(shared_memory_per_block_optin=99 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda of: device)
    problem = Problem(torch.device("cuda"), torch.bfloat16, 1, 197)
    chain = (monarch(384, 1536), Gelu(), monarch(1536, 384))
    reasons = {impl.name: impl.refuses(chain, problem) for impl in native_impls() if impl.name.startswith("native_mlp")}
    assert reasons["native_mlp:1"] is None
    assert reasons["native_mlp:3"] == ("fused MLP: tile 3 needs 225536 bytes of shared memory, the device has 101376")
    device.shared_memory_per_block_optin = 227 * 1024
    assert next(e for e in native_impls() if e.name == "native_mlp:3").refuses(chain, problem) is None
    narrow = (monarch(192, 768), Gelu(), monarch(768, 192))
    missing = next(e for e in native_impls() if e.name == "native_mlp:1").refuses(narrow, problem)
    assert missing == "fused MLP: no tile 1 for block width 48"
