"""Checkpoints of EfficientNet-PyTorch, whose keys are made here by walking through timm's blocks in their order."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from milkweed.models import import_checkpoint, load_bundle
from milkweed.models.errors import CheckpointError

from ..tiny import logits, with_statistics


def original_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each layer with weights by its name in EfficientNet-PyTorch."""
    yield from (("_conv_stem", model.conv_stem), ("_bn0", model.bn1), ("_conv_head", model.conv_head))
    yield from (("_bn1", model.bn2), ("_fc", model.classifier))
    for index, block in enumerate(block for stage in model.blocks for block in stage):
        inverted = hasattr(block, "conv_pwl")
        names = (
            ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
            if inverted
            else ("conv_dw", "bn1", "conv_pw", "bn2")
        )
        theirs = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")[0 if inverted else 2 :]
        yield from (
            (f"_blocks.{index}.{there}", getattr(block, name)) for there, name in zip(theirs, names, strict=True)
        )
        if isinstance(block.se, nn.Module) and hasattr(block.se, "conv_reduce"):
            yield f"_blocks.{index}._se_reduce", block.se.conv_reduce
            yield f"_blocks.{index}._se_expand", block.se.conv_expand


def original(model: nn.Module) -> dict[str, torch.Tensor]:
    layers = original_layers(model)
    return {f"{name}.{key}": value for name, layer in layers for key, value in layer.state_dict().items()}


@pytest.mark.parametrize("arch", ["tf_efficientnet_lite0", "tf_efficientnet_b0"])
@pytest.mark.slow_beyond(1)
def test_logits_are_those_of_timms_model(arch: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = with_statistics(timm.create_model(arch, num_classes=5))
    state = original(model)
    assert len(state) == len(model.state_dict())
    save_file(state, tmp_path / "original.safetensors")
    import_checkpoint(tmp_path / "original.safetensors", arch, tmp_path / "bundle", preprocess={"size": 64})
    served, _ = load_bundle(tmp_path / "bundle")
    assert torch.equal(logits(served, 64), logits(model, 64))


def test_a_block_too_many_is_named(tmp_path: Path) -> None:
    state = original(timm.create_model("tf_efficientnet_lite0", num_classes=5))
    save_file({**state, "_blocks.16._project_conv.weight": torch.ones(7, 1, 1, 1)}, tmp_path / "original.safetensors")
    with pytest.raises(CheckpointError, match=r"blocks\.7\.0"):
        import_checkpoint(tmp_path / "original.safetensors", "tf_efficientnet_lite0", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
