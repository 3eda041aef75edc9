"""A fused model gives the model's logits with every impl of the CPU."""

from itertools import product
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.impls.triton import triton_impls
from milkweed.models.accounting import resident_bytes
from milkweed.models.architectures.registry import create_model
from milkweed.models.serving.fused.block import FusedBlock
from milkweed.models.serving.fused.fuse import fuse
from milkweed.models.serving.fused.tuning import Tuning

from ...small_models import (
    BRANCHES,
    CPU,
    MODELS,
    MONARCH_ROLES,
    NATIVE,
    PERFORMERS,
    Preferring,
    build,
    fused,
    images,
    relative,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("roles", MONARCH_ROLES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_beyond(4)
def test_float32_is_the_same_function_at_every_batch(name: str, roles: str) -> None:
    model = build(name, roles)
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


@pytest.mark.parametrize(
    ("impl", "roles"),
    [*product(["dense", "torch"], ["dense", "all"]), ("feature_major", "all")],
)
def test_every_impl_of_the_cpu_gives_the_models_logits(impl: str, roles: str) -> None:
    model = build("vit", roles)
    timer = Preferring(impl)
    copied, report = fused(model, tuning=Tuning(measure=timer), batch_sizes=(2,))
    x = images(2)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    assert all(impl in part.plans[0].engines for part in report.parts)
    assert any(impl in label for label in timer.labels)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_beyond(1)
def test_the_kernels_operators_give_the_models_logits(name: str) -> None:
    """In bfloat16, through the packed layouts of the CUDA kernels; the plain fused forward is the yardstick."""
    model = build(name, "all")
    x = images(3)
    plain, _ = fused(model, dtype=torch.bfloat16, batch_sizes=(4,))
    with torch.inference_mode():
        want = model(x)
        allowed = 1.5 * relative(plain(x.bfloat16()), want)
    impls = [impl for impl in native_impls(on_cpu=True) if impl.name.endswith(":0")]  # tiles are CUDA's
    tuning = Tuning(impls=[*impls, DenseImpl(), EagerImpl()], measure=Preferring("native"))
    native, report = fused(model, dtype=torch.bfloat16, batch_sizes=(4,), tuning=tuning, kernels=NATIVE)
    with torch.inference_mode():
        assert relative(native(x.bfloat16()), want) <= max(allowed, 1e-2)
    used = {impl.partition(":")[0] for part in report.parts for plan in part.plans for impl in plan.engines}
    expected = {"native_attention", "native_mlp"}
    expected |= {"native_branch"} if name in BRANCHES else set()
    expected |= {"native_performer"} if name in PERFORMERS else set()
    assert expected <= used
    assert report.fallbacks == ()


@pytest.mark.parametrize("nblocks", [2, 8])
def test_monarch_mlps_of_other_blocks_than_the_kernels_run_on_tritons(nblocks: int) -> None:
    model = build("vit", "mlp", nblocks)
    impls = [*native_impls(on_cpu=True), *triton_impls(on_cpu=True), DenseImpl(), EagerImpl()]
    tuning = Tuning(impls=impls, measure=Preferring("_mlp"))  # native_mlp would be as fast
    copied, report = fused(model, dtype=torch.bfloat16, batch_sizes=(4,), tuning=tuning, kernels=NATIVE)
    x = images(3)
    with torch.inference_mode():
        assert relative(copied(x.bfloat16()), model(x)) <= 2e-2
    [mlp] = [part for part in report.parts if part.kind == "mlp"]
    assert "triton_mlp" in mlp.plans[0].engines[-1]
    blocks = ", ".join([str(nblocks)] * 4)
    assert mlp.refused["native_mlp"] == f"fused MLP: nblocks {blocks}; all must be 4"
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


@pytest.mark.parametrize("name", ["vitae_basic_tiny", "deit_tiny_patch16_224", "t2t_vit_7", "vitaev2_s"])
@pytest.mark.slow_beyond(1)
def test_logits_are_the_originals(name: str, fill: ModuleType, golden: dict[str, np.ndarray], images: Tensor) -> None:
    """Against logits that the original code gave in float64."""
    model = fill.fill(create_model(name))
    fuse(model, device=CPU, dtype=torch.float32, image_size=224, batch_sizes=(2,), tuning=Tuning("off"))
    with torch.inference_mode():
        got = model(images).numpy()
    assert np.abs(got - golden[f"{name}__fp64"]).max() <= 1e-5


def test_buckets_share_their_weights_and_accounting_sees_each_once() -> None:
    model = build("vit", "mlp")
    one, _ = fused(model, batch_sizes=(4,))
    many, _ = fused(model, batch_sizes=(1, 2, 4, 8))
    assert resident_bytes(many) == resident_bytes(one)
    stored = sum(p.numel() * 4 for p in model.parameters())
    assert resident_bytes(one) >= stored * 0.95
