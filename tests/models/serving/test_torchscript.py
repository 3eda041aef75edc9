"""A TorchScript forward gives the model's bits with its own weights, keeps no weights, and falls back to Python."""

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model, replace_linears
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.serving import torchscript
from milkweed.models.serving.prepare import prepare_for_inference
from milkweed.models.serving.torchscript import TorchScriptError, TorchScriptForward, torchscript_forward

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 11}


@pytest.fixture(autouse=True)
def _no_known_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript, "_SCRIPTS", {})


@pytest.fixture(name="records")
def _records(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were recorded."""
    found: list[nn.Module] = []
    trace: Any = torch.jit.trace

    def noted(model: nn.Module, *rest: Any, **options: Any) -> Any:
        found.append(model)
        return trace(model, *rest, **options)

    monkeypatch.setattr(torch.jit, "trace", noted)
    return found


def vit(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return prepare_for_inference(create_model("deit_tiny_patch16_224", **VIT))


def images(count: int = 3, seed: int = 7) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def same(forward: Any, model: nn.Module, x: Tensor) -> bool:
    with torch.inference_mode():
        return torch.equal(forward(x), model(x))


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nblocks", [0, 2])
@pytest.mark.parametrize("arch", ["deit_tiny_patch16_224", "vitae_basic"])
def test_the_graph_gives_equal_bits_for_every_family(
    arch: str, nblocks: int, dtype: torch.dtype, tiny_vit: dict[str, Any], tiny_vitae: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = create_model(arch, num_classes=5, **(tiny_vitae if "vitae" in arch else tiny_vit))
    if nblocks:
        replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), nblocks=nblocks))
    prepare_for_inference(model, dtype=dtype)
    forward = torchscript_forward(model, (2, 3, 32, 32), dtype)
    for seed in range(3):
        assert same(forward, model, images(2, seed).to(dtype))


def test_threads_run_the_graph_at_the_same_time() -> None:
    model = vit()
    forward = torchscript_forward(model, (3, 3, 32, 32))
    wrong: list[int] = []

    def classify(seed: int) -> None:
        for turn in range(5):
            if not same(forward, model, images(seed=100 * seed + turn)):
                wrong.append(seed)

    threads = [threading.Thread(target=classify, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_second_model_of_a_kind_takes_the_known_graph_with_its_own_weights(records: list[nn.Module]) -> None:
    first, second = vit(0), vit(1)
    forwards = [torchscript_forward(model, (3, 3, 32, 32)) for model in (first, second)]
    assert records == [first]
    assert same(forwards[0], first, images())
    assert same(forwards[1], second, images())
    assert not same(forwards[0], second, images())
    with torch.no_grad():
        next(first.parameters()).add_(1.0)  # the weights are shared, not copied
    assert same(forwards[0], first, images())
    torchscript_forward(first, (2, 3, 32, 32))
    assert len(records) == 2  # another shape is another graph


def test_no_weights_of_a_model_are_kept() -> None:
    model = vit()
    held = [weakref.ref(each) for each in (model, *model.parameters())]
    forward = torchscript_forward(model, (3, 3, 32, 32))
    del model
    gc.collect()
    assert all(each() is not None for each in held[1:])
    del forward
    gc.collect()
    assert [each() for each in held] == [None] * len(held)


class Scaled(nn.Module):
    """A module whose scale is neither in a tensor nor in its repr."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


def test_a_difference_that_the_key_does_not_show_is_found(records: list[nn.Module]) -> None:
    for scale in (1.0, 3.0):
        model = Scaled(scale).eval()
        forward = torchscript_forward(model, (2, 4))
        assert same(forward, model, torch.randn(2, 4))
    assert len(records) == 2


class Choosing(nn.Module):
    """A module whose path depends on the values."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.flatten()[0] > 0 else x - 1


class Tuple(nn.Module):
    """A module whose result is no tensor."""

    def forward(self, x: Tensor) -> Any:
        return x, object()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2)


class InPython(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("model", [Choosing(), Tuple(), InPython()], ids=["values", "types", "python"])
def test_a_forward_that_cannot_be_recorded_runs_in_python(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    shape = (2, 4)
    with pytest.raises(TorchScriptError) as caught:
        torchscript_forward(model, shape)
    assert "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        forward = TorchScriptForward(model, shape)
    assert forward.reason == str(caught.value)
    assert forward.summary == f"forward in Python: {caught.value}"
    assert [record.message for record in caplog.records] == ["the forward runs in Python"]
    x = torch.randn(shape)
    if not isinstance(model, Tuple):
        assert same(forward, model, x)


def test_a_recorded_forward_has_no_reason() -> None:
    forward = TorchScriptForward(vit(), (3, 3, 32, 32))
    assert forward.reason is None
    assert forward.summary == "forward without Python"
    assert same(forward, vit(), images())
