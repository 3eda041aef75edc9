"""A preprocessor_config.json becomes a `preprocess` with the same pixels as the processor's; others are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from milkweed.loaders.preprocess.normalise import Normaliser
from milkweed.loaders.preprocess.orientation import upright_crop
from milkweed.loaders.preprocess.spec import PreprocessSpec
from milkweed.models.importing.transformers.images import read_processor

VIT = {"image_processor_type": "ViTImageProcessor"}
SMALL = {"size": {"shortest_edge": 97}, "crop_size": {"height": 90, "width": 90}}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViT", {}),
        ("ViT", {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}),
        ("ViT", {"do_normalize": False}),
        ("DeiT", {}),
        ("DeiT", {"size": {"height": 97, "width": 97}, "crop_size": {"height": 90, "width": 90}}),
        ("Beit", {}),
        ("Siglip", {}),
        ("CLIP", {}),
        ("CLIP", SMALL),
        ("Bit", {"size": {"shortest_edge": 256}}),
        ("ConvNext", {"size": {"shortest_edge": 224}}),
        ("ConvNext", {}),
        ("MobileNetV2", {}),
    ],
)
def test_pixels_are_the_processors(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**options)
    processor.save_pretrained(tmp_path)
    spec = PreprocessSpec.from_dict(read_processor(json.loads((tmp_path / "preprocessor_config.json").read_text())))
    random = np.random.default_rng(0)
    for width, height in ((300, 200), (201, 333), (61, 317), (317, 61), (37, 41), (224, 224)):
        levels = np.kron(random.integers(0, 256, (height, width // 4 + 1, 3)), np.ones((1, 4, 1)))[:, :width]
        levels = levels.astype(np.uint8)
        theirs = processor(images=Image.fromarray(levels), return_tensors="np")["pixel_values"][0]
        ours = Normaliser(spec).batch(upright_crop(levels, 1, spec)[None])[0]
        assert np.abs(theirs - ours).max() < 1e-6


@pytest.mark.parametrize(
    ("document", "size", "crop_pct", "crop_mode"),
    [
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 224}, 224, 1.0, "squash"),
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 256, "crop_size": 224}, 224, 0.875, "center_down"),
        ({"image_processor_type": "ViTImageProcessorFast", "size": {"height": 64, "width": 64}}, 64, 1.0, "squash"),
        ({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224}, 224, 0.875, "center_down"),
        ({**VIT, "size": None, "image_mean": None}, 224, 1.0, "squash"),
    ],
)
def test_older_files_are_read_as_they_were_meant(
    document: dict[str, Any], size: int, crop_pct: float, crop_mode: str
) -> None:
    preprocess = read_processor(document)
    assert (preprocess["size"], preprocess["crop_pct"], preprocess["crop_mode"]) == (size, crop_pct, crop_mode)


@pytest.mark.parametrize("crop", range(200, 257, 7))
def test_the_short_side_is_what_the_file_says(crop: int) -> None:
    for short in range(crop, crop + 60):
        document = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": short}, "crop_size": crop}
        assert PreprocessSpec.from_dict(read_processor(document)).resize_short == short


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"image_processor_type": "SamImageProcessor"}, "processor 'SamImageProcessor' is not known: must be of ViT, "),
        ({}, "processor None is not known"),
        ({**VIT, "do_resize": False}, "do_resize false"),
        ({**VIT, "size": {"height": 224, "width": 192}}, "must be a shortest_edge, or a height and as much width"),
        ({**VIT, "size": {"shortest_edge": 224}}, "without do_center_crop: images must be square"),
        ({**VIT, "size": "large"}, "size 'large' must be"),
        ({**VIT, "size": {"shortest_edge": 0}}, "must be a shortest_edge"),
        ({**VIT, "do_center_crop": True, "crop_size": {"height": 9, "width": 8}}, "must be a square"),
        ({**VIT, "resample": 1}, r"resample 'lanczos' must be 2 \(bilinear\) or 3 \(bicubic\)"),
        ({**VIT, "resample": 99}, "resample 99 must be 2"),
        ({**VIT, "rescale_factor": 0}, "rescale_factor 0 must be a number above 0"),
        ({**VIT, "image_std": [0.5]}, "std .* must be three numbers"),
        ({**VIT, "image_mean": "imagenet"}, "mean 'imagenet' must be three numbers"),
        ({**VIT, "size": 100_000}, "size 100000 must be between 1 and 4096 px"),
    ],
)
def test_what_no_bundle_can_say_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_processor(document)
