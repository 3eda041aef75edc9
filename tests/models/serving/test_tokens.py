"""Models that compute fewer tokens, served: as graphs, in several threads, in int8, beside fused blocks."""

from typing import Any

import pytest
import torch
from torch import nn

from milkweed.inference.forward import LanePlan
from milkweed.inference.torch_forward import TorchForward
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.bundle.golden import check_golden, golden_images, golden_record
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.serving.prepare import prepare_for_inference
from milkweed.models.serving.torchscript import torchscript_forward

from ..small_models import build, images, relative

PLAN = TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True)


CELLS = TokenPlan(TokenMerging(0, 1, 0.3))
FAMILIES = {"vit": PLAN, "vitae": CELLS, "vitae with a class token": CELLS}


def model(roles: str = "dense", plan: TokenPlan = PLAN, family: str = "vit") -> nn.Module:
    return apply_token_plan(build(family, roles), plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("roles", ["dense", "all"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow_beyond(3)
def test_a_graph_gives_the_bits_of_the_model(family: str, roles: str, dtype: torch.dtype, one_thread: None) -> None:
    served = prepare_for_inference(model(roles, FAMILIES[family], family), dtype=dtype)
    graph = torchscript_forward(served, (2, 3, 32, 32), dtype)
    with torch.inference_mode():
        for batch in images(6).to(dtype).split(2):
            assert torch.equal(graph(batch), served(batch))


def test_graphs_of_different_plans_are_not_taken_for_each_other(one_thread: None) -> None:
    for share in (0.2, 0.4):
        for protect in (0.0, 1.0):
            served = prepare_for_inference(model(plan=TokenPlan(TokenMerging(0, 1, share, protect))))
            graph = torchscript_forward(served, (2, 3, 32, 32))
            with torch.inference_mode():
                assert torch.equal(graph(images(2)), served(images(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize("cpu_graphs", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow_beyond(6)
def test_an_image_gets_the_same_bits_in_any_company(
    family: str, micro_batch: int, cpu_graphs: bool, dtype: torch.dtype
) -> None:
    served = prepare_for_inference(model("mlp", FAMILIES[family], family), dtype=dtype)
    plan = LanePlan(micro_batch, 2, 1)
    arguments: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "size": 32, "cpu_graphs": cpu_graphs}
    forward, photos = TorchForward(served, plan, **arguments), images(9)
    try:
        alone = torch.cat([forward.run(photos[i : i + 1]).probabilities for i in range(9)])
        assert torch.equal(forward.run(photos).probabilities, alone)
        assert torch.equal(forward.run(photos.flip(0)).probabilities, alone.flip(0))
        assert torch.equal(forward.run(photos[3:8]).probabilities, alone[3:8])
        assert forward.traced is None or forward.traced.reason is None
        assert len({tuple(row) for row in alone.tolist()}) == 9
    finally:
        forward.close()


def test_int8_weights_work_with_a_plan() -> None:
    names = ["blocks.0.attn.qkv", "blocks.0.mlp.fc1", "blocks.1.mlp.fc2"]
    served = prepare_for_inference(model(), int8_layers=names)
    with torch.inference_mode():
        assert 0 < relative(served(images(3)), prepare_for_inference(model())(images(3))) < 0.05


def test_golden_answers_hold_in_every_dtype() -> None:
    record = golden_record(model(), 32)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.inference_mode():
            images = torch.from_numpy(golden_images(32)).to(dtype)
            answers = prepare_for_inference(model(), dtype=dtype)(images).float().softmax(-1)
        check_golden(record, answers, str(dtype).removeprefix("torch."))
