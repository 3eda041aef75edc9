"""ModelCard holds what a Hugging Face config.json in timm's form says of the weights beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..architectures.arch_args import MAX_CLASSES
from ..bundle.config import INTERPOLATIONS, PROBLEM_TYPES, check_preprocess
from ..bundle.labels import Label, parse_labels
from ..errors import CheckpointError, quoted
from .source import read_json

_WITHOUT_EFFECT = {"num_classes", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "weight_init", "fix_init"}
"""Arguments that change no answer of weights that are there, where all images are of one size."""


@dataclass(frozen=True)
class ModelCard:
    """A model as its config.json describes it.

    Args:
        arch, arch_args: arguments of `create_model`.
        preprocess: the members of a bundle's preprocess that the file gives.
        labels: one for each class; None where the file has none.
        notes: sentences on what could not be taken over.
        problem_type: one of PROBLEM_TYPES.
        convert: what makes the keys and tensors of timm of those beside it; None where they are timm's.
        num_classes: 0 where it says that there is no classifier; None where the weights tell.
    """

    arch: str
    arch_args: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[Label, ...] | None = None
    notes: tuple[str, ...] = ()
    problem_type: str = PROBLEM_TYPES[0]
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    num_classes: int | None = None


def read_card(path: Path) -> ModelCard:
    """Read a config.json that timm wrote: `architecture`, `model_args`, `pretrained_cfg`, `label_names`.

    Raises:
        CheckpointError: not JSON, written by another library, or values that no loader takes.
    """
    document = read_json(path)
    arch = document.get("architecture") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(arch, str):
        kind = document.get("model_type") if isinstance(document, dict) else None
        of = f": it describes a {quoted(kind)} of the transformers library" if kind else ""
        raise CheckpointError(f"{path}: names no architecture of timm{of}; import the file of weights alone")
    published = document.get("pretrained_cfg", document)  # older files have these members beside `architecture`
    arch_args = document.get("model_args") or {}
    if not isinstance(published, dict) or not isinstance(arch_args, dict):
        raise CheckpointError(f"{path}: pretrained_cfg and model_args must be objects")
    try:
        preprocess, notes = _preprocess(published)
        arch_args = _arguments(arch_args, published)
        labels = _labels({**published, **document, **(document.get("model_args") or {})})
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    bare = 0 if published.get("num_classes") == 0 else None
    return ModelCard(arch, arch_args, preprocess, labels, notes, num_classes=bare)


def _arguments(arguments: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the architecture, as timm's own factory takes them; the weights tell the number of classes."""
    if published.get("label_offset"):
        raise ValueError(f"label_offset {quoted(published['label_offset'])} must be 0: classes are taken as they are")
    args = {name: value for name, value in arguments.items() if name not in _WITHOUT_EFFECT}
    if isinstance(pool := published.get("global_pool"), str) and pool:
        args.setdefault("global_pool", pool)
    if published.get("fixed_input_size") and published.get("input_size"):
        args.setdefault("img_size", published["input_size"][1])
    return args


def _preprocess(published: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    preprocess = {key: published[key] for key in ("crop_pct", "interpolation", "mean", "std") if published.get(key)}
    size = published.get("input_size")
    if size is not None:
        if not isinstance(size, list) or len(size) != 3 or size[0] != 3 or size[1] != size[2]:
            raise ValueError(f"input_size {quoted(size)} must be [3, side, side]")
        preprocess["size"] = size[1]
    filler = {"size": 224, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
    notes = []
    if "interpolation" in preprocess and preprocess["interpolation"] not in INTERPOLATIONS:
        notes.append(f"images are resized bicubic: {quoted(preprocess['interpolation'])} of its config is none of ours")
        preprocess["interpolation"] = "bicubic"
    mode = published.get("crop_mode") or "center"
    if preprocess or mode != "center":  # as timm reads it: not as it prepares newer weights
        preprocess["crop_mode"] = mode if mode == "squash" else "center"
    if mode not in ("center", "squash"):
        notes.append(f"images are cropped at the centre: its config says {quoted(mode)}")
    check_preprocess({**filler, **preprocess})
    return preprocess, tuple(notes)


def _labels(document: Mapping[str, Any]) -> tuple[Label, ...] | None:
    names, texts = document.get("label_names", document.get("labels")), document.get("label_descriptions") or {}
    if names is None:
        return None
    count = document.get("num_classes", len(names))
    if (
        isinstance(names, dict) and type(count) is int and count <= MAX_CLASSES
    ):  # by index: timm lets classes have no name
        by_index = {str(index): names.get(str(index), f"class {index}") for index in range(count)}
        if unknown := names.keys() - by_index.keys():
            raise ValueError(
                f"label_names names class {quoted(min(unknown))}, the classes are 0 to {len(by_index) - 1}"
            )
        names = list(by_index.values())
    if not isinstance(names, list) or not isinstance(texts, dict):
        raise ValueError("label_names must be a list or an object, label_descriptions an object")
    names = [str(name) if type(name) is int else name for name in names]
    return parse_labels([{"id": name, "label": texts.get(name, name)} for name in names])
