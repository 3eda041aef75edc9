"""Reads a preprocessor_config.json of the transformers library as the `preprocess` of a bundle."""

import math
from collections.abc import Mapping
from typing import Any

from ...bundle.config import check_preprocess
from ...errors import quoted

Processor = Mapping[str, Any]

_HALF = [0.5, 0.5, 0.5]
_CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
_CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
_SQUARE = {"size": {"height": 224, "width": 224}, "resample": 3, "image_mean": _HALF, "image_std": _HALF}
_SHORTEST = {**_SQUARE, "size": {"shortest_edge": 224}, "do_center_crop": True}
_CLIP = {**_SHORTEST, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD}
_KINDS: Mapping[str, Processor] = {
    "ViT": {**_SQUARE, "resample": 2},
    "DeiT": {**_SQUARE, "size": {"height": 256, "width": 256}, "do_center_crop": True},
    "Beit": _SQUARE,
    "Siglip": _SQUARE,
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "ConvNext": {**_SHORTEST, "size": {"shortest_edge": 384}, "do_center_crop": False, "crop_pct": 0.875},
    "MobileNetV2": {**_SHORTEST, "size": {"shortest_edge": 256}, "resample": 2},
}
"""What a processor of each kind does where its file does not say."""

_USUAL: Processor = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_center_crop": False,
    "rescale_factor": 1 / 255,
    "crop_size": 224,
}
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The names of Pillow's filters; a place is the filter's number in Pillow."""

_WARPED_FROM = 384
"""ConvNeXt's processor crops images below this size, px, and squashes them from it on."""


def read_processor(document: Any) -> dict[str, Any]:
    """The preprocess of a bundle that computes the same pixels as the processor.

    Raises:
        ValueError: a processor of a kind that is not known, or one that does what no bundle can say.
    """
    if not isinstance(document, dict):
        raise ValueError(f"must be an object, not {quoted(document, 40)}")
    name = document.get("image_processor_type") or document.get("feature_extractor_type")
    kind = str(name).removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _KINDS:
        raise ValueError(f"processor {quoted(name)} is not known: must be of {', '.join(_KINDS)}")
    said = {member: value for member, value in document.items() if value is not None}
    processor: dict[str, Any] = {**_USUAL, **_KINDS[kind], **said}
    if not processor["do_resize"]:
        raise ValueError("do_resize false: images are resized to the model's square")
    size, short, mode = _geometry(processor, kind)
    share = size / short
    levels = 255 * _number(processor, "rescale_factor") if processor["do_rescale"] else 255.0
    scale = 1.0 if math.isclose(levels, 1) else levels  # a bundle's mean and std are of levels / 255
    mean, std = (processor["image_mean"], processor["image_std"]) if processor["do_normalize"] else ([0] * 3, [1] * 3)
    preprocess = {
        "size": size,
        "crop_pct": share if math.floor(size / share) == short else math.nextafter(share, 0),
        "interpolation": _filter(processor["resample"]),
        "mean": _over(mean, scale),
        "std": _over(std, scale),
        "crop_mode": mode,
    }
    check_preprocess(preprocess)
    return preprocess


def _geometry(processor: Processor, kind: str) -> tuple[int, int, str]:
    """Side of the crop and of the short side that it is cut from, px, and the bundle's `crop_mode`."""
    edges, usual = processor["size"], _KINDS[kind]["size"]
    edges = dict.fromkeys(usual, edges) if type(edges) is int else edges  # as files had it before 2023
    match {name: edge for name, edge in edges.items() if edge is not None} if isinstance(edges, dict) else {}:
        case {"shortest_edge": int(short), **others} if short > 0 and not others:
            mode = "center"
        case {"height": int(short), "width": int(width), **others} if short == width > 0 and not others:
            mode = "squash"
        case _:
            raise ValueError(f"size {quoted(edges)} must be a shortest_edge, or a height and as much width")
    if processor["do_center_crop"]:
        crop = processor["crop_size"]
        sides = list(crop.values()) if isinstance(crop, dict) else [crop]
        if any(type(side) is not int or side != sides[0] for side in sides) or not sides:
            raise ValueError(f"crop_size {quoted(crop)} must be a square")
        return sides[0], short, f"{mode}_down"
    if kind == "ConvNext" and short < _WARPED_FROM:
        return short, int(short / _number(processor, "crop_pct")), f"{mode}_down"
    if kind != "ConvNext" and mode != "squash":
        raise ValueError(f"size {quoted(edges)} without do_center_crop: images must be square")
    return short, short, "squash"


def _filter(resample: Any) -> str:
    name = _FILTERS[resample] if type(resample) is int and 0 <= resample < len(_FILTERS) else resample
    if name not in ("bilinear", "bicubic"):
        raise ValueError(f"resample {quoted(name)} must be 2 (bilinear) or 3 (bicubic)")
    return str(name)


def _number(processor: Processor, name: str) -> float:
    value = processor[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} {quoted(value)} must be a number above 0")
    return float(value)


def _over(values: Any, scale: float) -> Any:
    plain = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return [value / scale for value in values] if plain else values  # check_preprocess refuses what is no triple
