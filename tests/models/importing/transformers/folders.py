"""Tiny classifiers of the transformers library with random weights, and the folders that it writes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
SWIN = {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
CONVNEXT = {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 16, 24]}
RESNET = {"depths": [1, 2, 1, 1], "hidden_sizes": [16, 16, 32, 64]}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "newt"}, "label2id": {"cat": 0, "dog": 1, "newt": 2}}
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "vit": ("ViT", VIT, ""),
    "vit without biases": ("ViT", {**VIT, "qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}, ""),
    "deit": ("DeiT", VIT, ""),
    "deit with teacher": ("DeiT", VIT, "WithTeacher"),
    "beit": ("Beit", {**VIT, "use_relative_position_bias": True}, ""),
    "beit with a class token": (
        "Beit",
        {
            **VIT,
            "use_shared_relative_position_bias": True,
            "use_absolute_position_embeddings": True,
            "use_mean_pooling": False,
        },
        "",
    ),
    "data2vec": ("Data2VecVision", {**VIT, "use_relative_position_bias": True}, ""),
    "swin": ("Swin", SWIN, ""),
    "swinv2": ("Swinv2", {**SWIN, "pretrained_window_sizes": [3, 2]}, ""),
    "convnext": ("ConvNext", CONVNEXT, ""),
    "convnextv2": ("ConvNextV2", CONVNEXT, ""),
    "resnet": ("ResNet", RESNET, ""),
    "resnet of basic blocks": ("ResNet", {**RESNET, "layer_type": "basic"}, ""),
    "mobilenet_v2": ("MobileNetV2", {"depth_multiplier": 0.35}, ""),
    "dinov2": ("Dinov2", VIT, ""),
    "dinov2 with SwiGLU": ("Dinov2", {**VIT, "use_swiglu_ffn": True}, ""),
    "dinov2 with registers": ("Dinov2WithRegisters", VIT, ""),
    "siglip": ("Siglip", {"vision_config": VIT}, ""),
    "clip": ("CLIP", {"vision_config": VIT}, ""),
}
"""By name: what transformers' classes begin with, the config, and what the class of the model ends in."""

PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "resample": 3,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
}


def classifier(name: str) -> Any:
    """A model of FAMILIES with three classes; its answers differ much from image to image."""
    start, config, end = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{start}ForImageClassification{end}")(
        getattr(transformers, f"{start}Config")(**config, **LABELS)
    )
    return spread(model)


def spread(model: Any) -> Any:
    """The model with random weights that make its answers differ much from image to image, in eval mode."""
    for key, tensor in model.state_dict().items():
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point():
            deviation = 0.3 if tensor.dim() < 2 else (2 / tensor[0].numel()) ** 0.5
            tensor.copy_((tensor.dim() == 1) + torch.randn_like(tensor) * deviation)
    return model.eval()


def written(folder: Path, name: str = "vit", processor: dict[str, Any] | None = None, **options: Any) -> Any:
    """A classifier, saved to a folder as transformers does, with a processor beside it."""
    model = classifier(name)
    model.save_pretrained(folder, **options)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def written_multi_label(folder: Path) -> Any:
    """A ViT whose images may have several classes, saved to a folder."""
    model = written(folder, processor=PROCESSOR)
    changed(folder / "config.json", lambda d: d.update(problem_type="multi_label_classification"))
    return model


def sigmoids(model: Any, pictures: list[Image.Image]) -> NDArray[np.float64]:
    """The probabilities (n, classes) that transformers' processor and model give by themselves, in float64."""
    processor = transformers.ViTImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    pixels = torch.from_numpy(np.stack(processor(images=pictures)["pixel_values"]))
    with torch.no_grad():
        logits = model.double()(pixels.double()).logits.numpy()
    assert logits.std() > 0.5
    return np.asarray(1 / (1 + np.exp(-logits)))
