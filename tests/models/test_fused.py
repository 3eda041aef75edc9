"""A fused model computes what the model did, whatever runs it: on the CPU, with the operators' CPU implementations."""

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.engines.dense import DenseEngine
from milkweed.kernels.engines.native import native_engines
from milkweed.kernels.engines.torch_ops import EagerEngine
from milkweed.kernels.tuning.plan import spans_of
from milkweed.models.accounting import resident_bytes
from milkweed.models.fused.block import FusedBlock
from milkweed.models.fused.device_kernels import DeviceKernels
from milkweed.models.fused.fuse import fuse
from milkweed.models.fused.reduction import FusedPyramid
from milkweed.models.fused.report import FusionReport
from milkweed.models.fused.tuning import Tuning
from milkweed.models.registry import create_model
from milkweed.models.structure import monarch_structure, select_linears
from milkweed.models.vitae.normal import NormalCell

CPU = torch.device("cpu")
NATIVE = DeviceKernels("the operators' CPU implementations", None, shared_limit=160 * 1024)

# Widths that every kernel takes: head dim 32, groups of 4 channels, performers of 32.
VITAE: dict[str, Any] = {
    "img_size": 32,
    "reductions": ("performer", "performer_less"),
    "embed_dims": (16, 32),
    "token_dims": (32, 64),
    "downsample": (4, 1),
    "kernel_sizes": (7, 3),
    "dilations": ((1, 2), (1, 2)),
    "depths": (0, 2),
    "num_heads": (1, 2),
    "mlp_ratio": 2,
    "groups": (1, 16),
}
SHALLOW: dict[str, Any] = {
    "img_size": 32,
    "reductions": ("embedding",),
    "embed_dims": (64,),
    "token_dims": (64,),
    "downsample": (8,),
    "kernel_sizes": (3,),
    "dilations": ((1,),),
    "depths": (2,),
    "num_heads": (2,),
    "mlp_ratio": 2,
    "groups": (16,),
    "shallow": True,
}
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "init_values": 0.5}
T2T: dict[str, Any] = {"img_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2}
VITAE_V2: dict[str, Any] = {
    "img_size": 32,
    "embed_dims": (8, 8, 16, 16),
    "token_dims": (16, 32, 32, 64),
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 1, 1, 2),
    "reduction_heads": (1, 1, 1, 1),
    "groups": (1, 2, 2, 4),
    "reduction_groups": (1, 2, 2, 4),
}
MODELS = {
    "vitae": ("vitae_basic", VITAE),
    "vitae with a class token": ("vitae_basic", SHALLOW),
    "vit": ("deit_tiny_patch16_224", VIT),
    "t2t": ("t2t_vit_7", T2T),
}
BRANCHES, PERFORMERS = ("vitae", "vitae with a class token"), ("vitae", "t2t")
STRUCTURES = {"dense": [], "mlp": ["mlp"], "all": ["mlp", "qkv", "proj"]}


pytestmark = pytest.mark.usefixtures("one_thread")


def build(name: str, structure: str = "dense") -> nn.Module:
    """A model with weights and statistics that every mistake would show in."""
    arch, args = {**MODELS, "v2": ("vitaev2_s", VITAE_V2)}[name]
    torch.manual_seed(0)
    dense = create_model(arch, num_classes=10, **args)
    patterns = STRUCTURES[structure]
    layers = monarch_structure(dense, select_linears(dense, patterns), nblocks=4) if patterns else {}
    # The performer's own linears stay: they are not blocks.
    layers = {key: layer for key, layer in layers.items() if ".RC." not in key}
    torch.manual_seed(0)
    model = create_model(arch, num_classes=10, structure=layers, **args)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


class Preferring:
    """A timer that finds the engines of one name fast, and keeps what it was asked: `0:2 torch`, `plan 0b1 a | b`."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.labels: list[str] = []

    def __call__(self, call: Callable[[], object]) -> float:
        self.labels.append(str(call))
        match str(call).split(" ", 2):
            case ["plan", bits, engines]:
                spans, names = spans_of(int(bits[2:] or "0", 2), len(bits) - 1), engines.split(" | ")
            case [span, name] if ":" in span:
                start, end = span.split(":")
                spans, names = ((int(start), int(end)),), [name]
            case [_, name]:  # a branch or a performer
                spans, names = ((0, 1),), [name]
        costs = zip(spans, names, strict=True)
        return sum(1e-6 if self.engine in name else 1e-4 * (end - start) for (start, end), name in costs)


def fused(
    model: nn.Module, *, dtype: torch.dtype = torch.float32, batch_sizes: tuple[int, ...] = (1, 2, 4), **more: Any
) -> tuple[nn.Module, FusionReport]:
    """A fused copy on the CPU."""
    other = copy.deepcopy(model)
    more.setdefault("tuning", Tuning("off"))
    report = fuse(other, device=CPU, dtype=dtype, image_size=32, batch_sizes=batch_sizes, **more)
    return other, report


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", MODELS)
def test_float32_is_the_same_function_at_every_batch(name: str, structure: str) -> None:
    model = build(name, structure)
    copied, report = fused(model)
    with torch.inference_mode():
        for count in (1, 3, 4, 5):  # buckets, between them, above them
            x = images(count)
            assert relative(copied(x), model(x)) <= 1e-5
    blocks = [module for module in copied.modules() if isinstance(module, FusedBlock)]
    assert len(blocks) == 2
    assert {part.kind: part.count for part in report.parts if part.kind in ("attention", "mlp")} == {
        "attention": 2,
        "mlp": 2,
    }
    assert not [module for module in copied.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("structure", ["dense", "all"])
@pytest.mark.parametrize("engine", ["feature_major", "dense", "batched", "torch"])
def test_every_engine_of_the_cpu_gives_the_models_logits(engine: str, structure: str) -> None:
    if structure == "dense" and engine in ("feature_major", "batched"):
        pytest.skip("an engine of Monarch layers")
    model = build("vit", structure)
    timer = Preferring(engine)
    copied, report = fused(model, tuning=Tuning(measure=timer), batch_sizes=(2,))
    x = images(2)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    assert all(engine in part.plans[0].engines for part in report.parts)
    assert any(engine in label for label in timer.labels)


@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_operators_give_the_models_logits(name: str) -> None:
    """In bfloat16, through the packed layouts of the CUDA kernels; the plain fused forward is the yardstick."""
    model = build(name, "all")
    x = images(3)
    plain, _ = fused(model, dtype=torch.bfloat16, batch_sizes=(4,))
    with torch.inference_mode():
        want = model(x)
        allowed = 1.5 * relative(plain(x.bfloat16()), want)
    engines = [engine for engine in native_engines(on_cpu=True) if engine.name.endswith(":0")]  # tiles are CUDA's
    tuning = Tuning(engines=[*engines, DenseEngine(), EagerEngine()], measure=Preferring("native"))
    native, report = fused(model, dtype=torch.bfloat16, batch_sizes=(4,), tuning=tuning, kernels=NATIVE)
    with torch.inference_mode():
        assert relative(native(x.bfloat16()), want) <= max(allowed, 1e-2)
    used = {engine.partition(":")[0] for part in report.parts for plan in part.plans for engine in plan.engines}
    expected = {"native_linear", "native_attention", "native_mlp"}
    expected |= {"native_branch"} if name in BRANCHES else set()
    expected |= {"native_performer"} if name in PERFORMERS else set()
    assert expected <= used
    assert report.fallbacks == ()


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_stays_close(name: str) -> None:
    model = build(name, "mlp")
    copied, _ = fused(model, dtype=torch.bfloat16)
    x = images(4)
    with torch.inference_mode():
        got = copied(x.bfloat16())
        assert got.dtype == torch.bfloat16
        assert relative(got, model(x)) <= 3e-2


def test_windows_keep_their_own_forward_and_are_told() -> None:
    model = build("v2", "all")
    copied, report = fused(model, kernels=NATIVE)
    with torch.inference_mode():
        for count in (1, 3, 5):
            assert relative(copied(images(count)), model(images(count))) <= 1e-5
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 2  # the stages that attend globally
    assert sum(isinstance(module, FusedPyramid) for module in copied.modules()) == 4
    told = [fallback.reason for fallback in report.fallbacks if fallback.kind == "block"]
    assert "NormalCell: its attention is within windows" in told
    assert all("NormalCell" in reason or "TokenTransformer" in reason for reason in told)
    branches = [part for part in report.parts if part.kind == "branch"]
    assert [part.refused for part in branches] == [{"native_branch": "the branch has other steps than the kernel"}] * 2


@pytest.mark.parametrize("name", ["vitae_basic_tiny", "deit_tiny_patch16_224", "t2t_vit_7", "vitaev2_s"])
def test_logits_are_the_originals(name: str, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor) -> None:
    """Against logits that the original code gave in float64."""
    model = fill.fill(create_model(name))
    fuse(model, device=CPU, dtype=torch.float32, image_size=224, batch_sizes=(2,), tuning=Tuning("off"))
    with torch.inference_mode():
        got = model(images).numpy()
    assert np.abs(got - golden[f"{name}__fp64"]).max() <= 1e-5


def test_monarch_layers_in_a_reduction_cell_are_served_by_torch_and_told() -> None:
    dense = build("vitae")
    names = select_linears(dense, ["layers.0.RC.attn.*"])
    arch, args = MODELS["vitae"]
    torch.manual_seed(0)
    model = create_model(arch, num_classes=10, structure=monarch_structure(dense, names, nblocks=4), **args)
    assert len(names) == 4
    copied, report = fused(model, kernels=NATIVE)
    x = images(3)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    [performer] = [part for part in report.parts if part.kind == "performer"]
    assert performer.refused == {"native_performer": "a layer behind the attention is not a dense one"}
    assert resident_bytes(copied) >= 0.95 * sum(p.numel() * 4 for p in model.parameters())


def test_a_monarch_layer_before_the_performer_is_no_matter_to_its_kernels() -> None:
    arch, args = MODELS["vitae"]
    dense = build("vitae")
    torch.manual_seed(0)
    structure = monarch_structure(dense, ["layers.0.RC.attn.kqv"], nblocks=4)
    model = create_model(arch, num_classes=10, structure=structure, **args)
    copied, report = fused(model, dtype=torch.bfloat16, batch_sizes=(4,), kernels=NATIVE)
    [performer] = [part for part in report.parts if part.kind == "performer"]
    assert performer.plans[0].engines == ("native_performer",)
    x = images(3)
    with torch.inference_mode():
        assert relative(copied(x.bfloat16()), model(x)) <= 3e-2


def test_features_that_no_kernel_takes_are_served_by_torch_and_told() -> None:
    model = build("vitae")
    with torch.no_grad():
        model.layers[0].RC.attn.w.mul_(1e39 / model.layers[0].RC.attn.w.abs().max())  # type: ignore[index, union-attr, operator]
    _, report = fused(model, dtype=torch.bfloat16, kernels=NATIVE)
    [performer] = [part for part in report.parts if part.kind == "performer"]
    assert list(performer.refused) == ["native_performer"]
    assert "do not fit" in performer.refused["native_performer"]


class Odd(NormalCell):
    """A cell that computes something else; nobody wrote a rule for it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_a_block_without_a_rule_runs_its_own_forward_and_is_told() -> None:
    model = build("vitae")
    model.layers[1].NC[0].__class__ = Odd  # type: ignore[index, union-attr]
    copied, report = fused(model)
    x = images(2)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 1
    told = [fallback.reason for fallback in report.fallbacks if fallback.kind == "block"]
    assert told == ["Odd: there is no rule for blocks of this type"]


def test_a_model_without_any_block_is_served_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    copied, report = fused(model)
    x = images(2)
    with torch.inference_mode():
        torch.testing.assert_close(copied(x), model(x))
    assert report.fallback_counts["block"] == 1
    assert report.summary == "fused: nothing; 2 fallbacks"


def test_a_block_that_nothing_runs_rightly_keeps_its_own_forward() -> None:
    model = build("vit")
    with torch.no_grad():
        model.blocks[1].mlp.fc1.bias[0] = float("nan")  # type: ignore[union-attr, index]
    copied, report = fused(model, tuning=Tuning(measure=Preferring("dense")))
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 1
    assert report.fallback_counts["block"] == 1
    with torch.inference_mode():
        assert copied(images(1)).isnan().all()  # as the model's own


def test_buckets_share_their_weights_and_accounting_sees_each_once() -> None:
    model = build("vit", "mlp")
    one, _ = fused(model, batch_sizes=(4,))
    many, _ = fused(model, batch_sizes=(1, 2, 4, 8))
    assert resident_bytes(many) == resident_bytes(one)
    stored = sum(p.numel() * 4 for p in model.parameters())
    assert resident_bytes(one) >= stored * 0.95
