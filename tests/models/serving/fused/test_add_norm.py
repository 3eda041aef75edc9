"""The addition that ends a block's first half and the norm behind it: one launch where that is right and faster."""

import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.impls.base import Impl
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.impls.triton import triton_impls
from milkweed.kernels.native.torch_ops import add_layernorm
from milkweed.models.serving.fused import add_norm
from milkweed.models.serving.fused.report import FusionReport, PartReport
from milkweed.models.serving.fused.tuning import Tuning

from ...small_models import NATIVE, Preferring, build, fused, images, relative

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS = 2
JOINT = "native_add_layernorm"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that the operator was called with."""
    shapes: list[torch.Size] = []

    def counted(x: Tensor, *more: Tensor) -> Tensor:
        shapes.append(x.shape)
        return add_layernorm(x, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(add_norm, "add_layernorm", counted)
    return shapes


def joined(name: str, roles: str, tuning: Tuning, **more: object) -> tuple[nn.Module, FusionReport]:
    given = {"dtype": torch.bfloat16, "batch_sizes": (2, 4), "tuning": tuning, "kernels": NATIVE, **more}
    return fused(build(name, roles), **given)  # type: ignore[arg-type]


def impls(*names: str) -> list[Impl]:
    kernels = [impl for impl in (*native_impls(on_cpu=True), *triton_impls(on_cpu=True)) if impl.name in names]
    return [*kernels, DenseImpl(), EagerImpl()]


def row(report: FusionReport) -> PartReport:
    [part] = [part for part in report.parts if part.kind == "add_layernorm"]
    return part


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", ["vit", "vitae", "vitae with a class token", "t2t"])
def test_a_joined_model_gives_the_models_logits(name: str, calls: list[torch.Size]) -> None:
    tuning = Tuning(impls=impls("native_attention:0"), measure=Preferring("native"))
    copied, report = joined(name, "dense", tuning, dtype=torch.float16)
    plain, _ = fused(build(name), dtype=torch.float16, batch_sizes=(2, 4))
    part = row(report)
    assert part.count == BLOCKS
    assert [(plan.batch, plan.engines, plan.source) for plan in part.plans] == [
        (2, (JOINT,), "measured"),
        (4, (JOINT,), "measured"),
    ]
    assert (part.refused, report.fallbacks) == ({}, ())
    model = build(name)
    with torch.inference_mode():
        for count in (1, 3, 5):
            calls.clear()
            x = images(count)
            got, want = copied(x.half()), model(x)
            assert len(calls) == BLOCKS
            assert relative(got, want) <= max(2e-3, 1.5 * relative(plain(x.half()), want))


def test_without_measuring_the_kernel_is_taken(calls: list[torch.Size]) -> None:
    copied, report = joined("vit", "dense", Tuning("off", impls=impls()))
    part = row(report)
    assert {plan.engines for plan in part.plans} == {(JOINT,)}
    calls.clear()
    with torch.inference_mode():
        copied(images(2).bfloat16())
    assert len(calls) == BLOCKS


def test_where_pytorch_is_faster_the_halves_stay_as_they_are(calls: list[torch.Size]) -> None:
    copied, report = joined("vit", "dense", Tuning(impls=impls(), measure=Preferring("torch")))
    plain, _ = joined("vit", "dense", Tuning(impls=impls(), measure=Preferring("torch")), kernels=None)
    part = row(report)
    assert {plan.engines for plan in part.plans} == {("torch",)}
    calls.clear()
    x = images(3).bfloat16()
    with torch.inference_mode():
        assert torch.equal(copied(x), plain(x))
    assert calls == []


@pytest.mark.parametrize(("roles", "taken"), [("all", "triton:0"), ("mlp", "native_mlp:0")])
def test_a_kernel_that_adds_or_normalises_along_the_way_keeps_doing_so(
    roles: str, taken: str, calls: list[torch.Size]
) -> None:
    copied, report = joined("vit", roles, Tuning(impls=impls(taken), measure=Preferring(taken)))
    assert any(taken in plan.engines for part in report.parts for plan in part.plans)
    assert "add_layernorm" not in {part.kind for part in report.parts}
    with torch.inference_mode():
        copied(images(2).bfloat16())
    assert calls == []


def test_a_wrong_kernel_is_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_norm, "add_layernorm", lambda *given: add_layernorm(*given) * 1.1)
    copied, report = joined("vit", "dense", Tuning(impls=impls(), measure=Preferring("native")))
    part = row(report)
    assert {plan.engines for plan in part.plans} == {("torch",)}
    assert [fallback.reason for fallback in report.fallbacks] == [f"{JOINT}: relative error 1.0e-01"]
    model, x = build("vit"), images(2)
    with torch.inference_mode():
        assert relative(copied(x.bfloat16()), model(x)) <= 3e-2


@pytest.mark.parametrize(
    ("dtype", "quarantined", "reason"),
    [
        (torch.float32, "", "dtype torch.float32: bfloat16 or float16 is needed"),
        (torch.bfloat16, JOINT, "quarantined (MILKWEED_QUARANTINE)"),
    ],
)
def test_a_refused_kernel_is_not_called(
    monkeypatch: pytest.MonkeyPatch, calls: list[torch.Size], dtype: torch.dtype, quarantined: str, reason: str
) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", quarantined)
    copied, report = joined("vit", "dense", Tuning(impls=impls(), measure=Preferring("native")), dtype=dtype)
    part = row(report)
    assert part.refused == {JOINT: reason}
    assert {plan.engines for plan in part.plans} == {("torch",)}
    with torch.inference_mode():
        copied(images(2).to(dtype))
    assert calls == []
