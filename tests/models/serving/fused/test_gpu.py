"""The fused and captured forward on a real device: the model's float32 logits within bfloat16, replays bit by bit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.serving.cuda_graph import CudaGraphForward
from milkweed.models.serving.fused.report import FusionReport
from milkweed.models.serving.fused.tuning import Tuning
from milkweed.models.serving.prepare import prepare_for_inference

from ... import small_models
from ...small_models import SHALLOW, relative

pytestmark = pytest.mark.gpu

BATCHES = (1, 2, 4, 8)
WIDE_SHALLOW: dict[str, Any] = {
    **SHALLOW,
    "img_size": 224,
    "embed_dims": (256,),
    "token_dims": (256,),
    "downsample": (16,),
    "depths": (4,),
    "num_heads": (4,),
    "mlp_ratio": 4,
    "groups": (64,),
}
FAMILIES = {
    "ViT": ("vit_tiny_patch16_224", {}, []),
    "ViT, Monarch": ("vit_tiny_patch16_224", {}, ["mlp", "qkv", "proj"]),
    "DeiT III": ("deit3_small_patch16_224", {"depth": 4}, ["mlp"]),
    "ViTAE": ("vitae_basic_tiny", {}, []),
    "ViTAE, Monarch": ("vitae_basic_tiny", {}, ["mlp", "qkv", "proj"]),
    "ViTAE with a class token": ("vitae_basic", WIDE_SHALLOW, ["mlp"]),
}


def build(family: str) -> nn.Module:
    arch, args, patterns = FAMILIES[family]
    torch.manual_seed(0)
    dense = create_model(arch, **args)
    chosen = [name for name in select_linears(dense, patterns) if ".RC." not in name] if patterns else []
    specs = layer_specs_for(dense, chosen, nblocks=4) if chosen else {}
    torch.manual_seed(0)
    return create_model(arch, layer_specs=specs, **args)


def fused(model: nn.Module, tuning: Tuning | None = None, **more: Any) -> tuple[nn.Module, FusionReport]:
    given: dict[str, Any] = {"device": device(), "dtype": torch.bfloat16, "image_size": 224, "batch_sizes": BATCHES}
    return small_models.fused(model, tuning=tuning or Tuning("off"), **{**given, **more})


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def images(count: int) -> Tensor:
    return small_models.images(count, 224)


@pytest.mark.parametrize("tuning", [Tuning("off"), Tuning("auto")], ids=["untuned", "tuned"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_the_models(family: str, tuning: Tuning) -> None:
    model = build(family)
    on_device, report = fused(model, tuning)
    plain = prepare_for_inference(copy.deepcopy(model), dtype=torch.bfloat16).cuda()
    assert [fallback for fallback in report.fallbacks if fallback.kind != "library"] == []
    with torch.inference_mode():
        for count in (1, 3, 8, 11):
            x = images(count)
            want, low = model(x), x.cuda().bfloat16()
            got = on_device(low)
            assert got.isfinite().all()
            # Twelve blocks in bfloat16 may be further off than a hundredth, whoever computes them.
            assert relative(got, want) <= max(1e-2, 1.25 * relative(plain(low), want))


def test_a_model_of_fewer_tokens_is_the_models_within_bfloat16_and_merges_on_the_device() -> None:
    model = apply_token_plan(build("ViT, Monarch"), TokenPlan(TokenMerging(3, 2, 0.22, 0.1), True))
    on_device, report = fused(model, Tuning("auto"))
    plain = prepare_for_inference(copy.deepcopy(model), dtype=torch.bfloat16).cuda()
    assert [fallback for fallback in report.fallbacks if fallback.kind != "library"] == []
    assert {part.tokens for part in report.parts if part.kind == "merge"} == {197, 154, 120, 94}
    x = images(8)
    with torch.inference_mode():
        want, low = model(x), x.cuda().bfloat16()
        # Rounding decides between nearly equal similarities, otherwise in each of the two.
        assert relative(on_device(low), want) <= max(2e-2, 2 * relative(plain(low), want))
        low[3, 0, 5, 5] = float("nan")
        assert on_device(low).isnan().any(dim=1).tolist() == [image == 3 for image in range(8)]


@pytest.mark.parametrize("family", FAMILIES)
def test_replays_are_the_eager_forward_bit_by_bit(family: str) -> None:
    model, _ = fused(build(family))

    def forward(x: Tensor) -> Tensor:
        return model(x.bfloat16()).float().softmax(-1)

    graphs = CudaGraphForward(forward, device=device(), image_shape=(3, 224, 224), batch_sizes=BATCHES)
    assert graphs.reason is None
    with torch.inference_mode():
        for count in (8, 1, 3, 5, 7, 8, 11):  # ragged, and above the largest
            x = images(count)
            rows = []
            for part in x.split(graphs.largest):
                bucket = min(size for size in BATCHES if size >= len(part))
                padded = torch.cat([part, torch.zeros(bucket - len(part), 3, 224, 224)])
                rows.append(forward(padded.cuda())[: len(part)])
            want = torch.cat(rows)
            assert torch.equal(graphs(x), want)
            assert torch.equal(graphs(x.cuda()), want)
            assert torch.equal(graphs(x.pin_memory()), want)


def test_an_images_answer_does_not_depend_on_earlier_batches() -> None:
    model, _ = fused(build("ViTAE, Monarch"))
    graphs = CudaGraphForward(
        lambda x: model(x.bfloat16()).float(),
        device=device(),
        image_shape=(3, 224, 224),
        batch_sizes=(4,),
    )
    x = images(3)
    first = graphs(x)
    graphs(torch.full((4, 3, 224, 224), float("nan")))
    assert torch.equal(graphs(x), first)


def test_float32_is_the_plain_forward_on_the_device() -> None:
    model = build("ViTAE, Monarch")
    on_device, _ = fused(model, dtype=torch.float32, batch_sizes=(2,))
    plain = prepare_for_inference(copy.deepcopy(model)).to(device())
    x = images(2).to(device())
    with torch.inference_mode():
        assert relative(on_device(x), plain(x).cpu()) <= 1e-3  # convolutions may be TF32 in both
