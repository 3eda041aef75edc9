"""Models of the transformers library without a classifier become bundles that give the embedding it pools."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from milkweed.models import import_checkpoint, load_bundle
from milkweed.models.errors import CheckpointError

from .folders import CONVNEXT, PROCESSOR, RESNET, SWIN, VIT, spread
from .test_folders import pixels

WIDE = {**VIT, "projection_dim": 24}
TOWERS = {"vision_config": WIDE, "text_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}}
CLIP = {**TOWERS, "projection_dim": 24}
CASES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "ViTModel": ("ViTConfig", VIT, "token", 32),
    "DeiTModel": ("DeiTConfig", VIT, "token", 32),
    "BeitModel": ("BeitConfig", {**VIT, "use_relative_position_bias": True}, "pooler_output", 32),
    "Dinov2Model": ("Dinov2Config", VIT, "pooler_output", 32),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", VIT, "pooler_output", 32),
    "SwinModel": ("SwinConfig", SWIN, "pooler_output", 32),
    "Swinv2Model": ("Swinv2Config", SWIN, "pooler_output", 32),
    "ConvNextModel": ("ConvNextConfig", CONVNEXT, "pooler_output", 24),
    "ConvNextV2Model": ("ConvNextV2Config", CONVNEXT, "pooler_output", 24),
    "MobileNetV2Model": ("MobileNetV2Config", {"depth_multiplier": 0.35}, "pooler_output", 1280),
    "ResNetModel": ("ResNetConfig", RESNET, "pooler_output", 64),
    "CLIPModel": ("CLIPConfig", CLIP, "image_embeds", 24),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", WIDE, "image_embeds", 24),
    "CLIPVisionModel": ("CLIPVisionConfig", WIDE, "pooler_output", 32),
    "SiglipModel": ("SiglipConfig", TOWERS, "pooler_output", 32),
    "SiglipVisionModel": ("SiglipVisionConfig", VIT, "pooler_output", 32),
}
"""The table has for each class its config, which part of its output is the embedding, and how wide that is."""


def saved(folder: Path, name: str) -> tuple[Any, int]:
    """A model with random weights, saved as transformers does with a processor beside it, and its images' side."""
    config, values, _, _ = CASES[name]
    size = 32 if CASES[name][1].keys() & {"hidden_size", "vision_config"} else 64
    torch.manual_seed(0)
    model = spread(getattr(transformers, name)(getattr(transformers, config)(**values)))
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(**{**PROCESSOR, "size": {"height": size, "width": size}}).save_pretrained(folder)
    return model, size


def embedded(model: Any, name: str, images: torch.Tensor) -> torch.Tensor:
    """What transformers gives."""
    part = CASES[name][2]
    with torch.no_grad():
        if name in ("CLIPModel", "SiglipModel"):
            pooled = model.vision_model(images).pooler_output
            return model.visual_projection(pooled) if name == "CLIPModel" else pooled
        outputs = model(images)
    return outputs.last_hidden_state[:, 0] if part == "token" else outputs[part].flatten(1)


@pytest.mark.slow_beyond(6)
@pytest.mark.parametrize("name", CASES)
def test_the_embedding_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    model, size = saved(tmp_path / "f", name)
    config = import_checkpoint(tmp_path / "f", None, tmp_path / "b").config
    expected = embedded(model, name, pixels(size))
    loaded, _ = load_bundle(tmp_path / "b")
    with torch.no_grad():
        actual = loaded(pixels(size))
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert (config.problem_type, config.num_classes) == ("feature_extraction", CASES[name][3])
    assert config.output_meaning == ("projected" if CASES[name][2] == "image_embeds" else "pooled")


def test_a_model_that_is_there_for_something_else_is_refused(tmp_path: Path) -> None:
    model = transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**VIT, encoder_stride=8))
    model.save_pretrained(tmp_path / "f")
    with pytest.raises(CheckpointError, match="'ViTForMaskedImageModeling' gives neither classes nor an embedding"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")
