"""Parameters, bytes and MACs: against the published figures, torch's own counter and counting by hand."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from milkweed.models.accounting import (
    dense_equivalent_bytes,
    dense_equivalent_parameters,
    macs,
    parameter_count,
    resident_bytes,
)
from milkweed.models.architectures.registry import create_model
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears


@pytest.mark.skipif(
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry,
    reason="this torch's own counter does not count attention on a CPU",
)
def test_macs_agree_with_torchs_counter_layer_by_layer(tiny_vitae: dict[str, Any]) -> None:
    model = create_model("vitae_basic", num_classes=3, **tiny_vitae)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    counted = macs(model, 32)
    assert counted == macs(model.to("meta"), 32)
    assert counted.total == counter.get_total_flops() // 2
    by_module = counter.get_flop_counts()
    for name in ("head", "layers.1.NC.0.mlp.fc1", "layers.0.RC.PRM.convs.0.0"):
        assert counted.by_layer[name] == sum(by_module[f"ViTAE.{name}"].values()) // 2


def test_counting_leaves_the_model_as_it_was(tiny_vitae: dict[str, Any]) -> None:
    model = create_model("vitae_basic", num_classes=3, **tiny_vitae).train()
    before = {key: (tensor.clone(), tensor.data_ptr()) for key, tensor in model.state_dict().items()}
    with torch.inference_mode():
        macs(model, 32)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key][0])
        assert tensor.data_ptr() == before[key][1]
    assert all(m.training and "forward" not in vars(m) for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_inference_mode_hides_no_attention(tiny_vit: dict[str, Any]) -> None:
    model = create_model("deit_tiny_patch16_224", num_classes=3, **tiny_vit)
    outside = macs(model, 32)
    with torch.inference_mode():
        assert macs(model, 32) == outside
        assert macs(create_model("deit_tiny_patch16_224", num_classes=3, **tiny_vit), 32) == outside


def test_dense_equivalent_is_the_dense_model() -> None:
    with torch.device("meta"):
        dense, model = create_model("vitae_basic_tiny"), create_model("vitae_basic_tiny")
        replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp", "qkv", "proj"]), nblocks=4))
    assert dense_equivalent_parameters(model) == parameter_count(dense).total == 4_886_888
    assert dense_equivalent_bytes(model) == dense_equivalent_bytes(dense)
    assert dense_equivalent_bytes(dense) == sum(t.numel() * t.element_size() for t in dense.state_dict().values())


def test_resident_bytes_count_shared_memory_once_and_views_whole() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(4, 6))
    assert resident_bytes(model) == 2 * (24 + 6) * 4
    model[1].weight = model[0].weight
    assert resident_bytes(model) == (24 + 6 + 6) * 4
    model[0].bias = nn.Parameter(torch.zeros(600)[:6])
    assert resident_bytes(model) == (24 + 600 + 6) * 4
