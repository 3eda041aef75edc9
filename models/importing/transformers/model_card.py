"""Reads the config.json of an image model of the transformers library, and the preprocessor_config.json beside it."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...bundle.config import PROBLEM_TYPES
from ...bundle.labels import Label, read_labels
from ...errors import CheckpointError, quoted
from ..card import ModelCard
from ..source import read_json
from .families import EMBEDDERS, FAMILIES, WITH_TEACHER, TransformersFamily, timm_arguments
from .images import read_processor
from .keys import timm_state

PROCESSOR = "preprocessor_config.json"
_CLASSIFIER = "ForImageClassification"
_PROJECTED = "CLIPModel", "CLIPVisionModelWithProjection"
_EMBEDDERS = "Model", *_PROJECTED


def read_transformers_card(path: Path, document: Mapping[str, Any]) -> ModelCard:
    """What config.json says of the model, with the conversion of its weights to timm's keys.

    Raises:
        CheckpointError: no model of a known family, or values that no model or loader takes.
    """
    kind, made = document["model_type"], document.get("architectures")
    name = str(made[0]) if isinstance(made, list) and made else _CLASSIFIER
    embedder = name.endswith(_EMBEDDERS)
    families = EMBEDDERS if embedder else FAMILIES
    if kind not in families:
        raise CheckpointError(
            f"{path}: describes a {quoted(kind)} of the transformers library: {', '.join(families)} can be imported"
        )
    if not embedder and _CLASSIFIER not in name:
        served = f"...{_CLASSIFIER} and ...Model"
        raise CheckpointError(f"{path}: a {quoted(name)} gives neither classes nor an embedding: {served} do")
    try:
        if embedder:
            whole = name in _PROJECTED
            card = _card(path, families[kind], {**document, "problem_type": None, "id2label": None})
            return replace(card, problem_type=PROBLEM_TYPES[2], num_classes=None if whole else 0)
        with_teacher = made == ["DeiTForImageClassificationWithTeacher"]
        return _card(path, WITH_TEACHER if with_teacher else FAMILIES[kind], document)
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _card(path: Path, family: TransformersFamily, document: Mapping[str, Any]) -> ModelCard:
    if (task := document.get("problem_type") or PROBLEM_TYPES[0]) not in PROBLEM_TYPES[:2]:
        raise ValueError(f"problem_type {quoted(task)} must be {' or '.join(PROBLEM_TYPES[:2])}")
    tower = document.get("vision_config", {}) if document["model_type"] in ("clip", "siglip") else {}
    if not isinstance(tower, dict):
        raise ValueError(f"vision_config {quoted(tower, 40)} must be an object")
    config = {**document, **tower, "model_type": document["model_type"]}
    preprocess, notes = _preprocess(path.with_name(PROCESSOR))
    args = timm_arguments(family, config)
    size, trained = preprocess.get("size"), args.get("img_size")
    if size is not None and "img_size" in args:
        if family.sized and family.resized is None and size != trained:
            raise ValueError(f"image_size is {quoted(trained)}, {PROCESSOR} makes images of {size} px")
        args["img_size"] = size
    arch, further = family.arch(args, config)
    args |= further

    def convert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        converted = timm_state(family.rules, state)
        return converted if family.resized is None else _placed(converted, args, family.resized)

    labels = _labels(path, document)
    counts = Counter(label.label for label in labels or ())
    if twice := next((name for name, count in counts.items() if count > 1), None):
        notes += (f"{counts[twice]} classes are called {quoted(twice)}: their ids tell them apart",)
    return ModelCard(arch, args, preprocess, labels, notes, task, convert)


def _preprocess(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not path.is_file():
        return {}, (f"no {PROCESSOR}: images are prepared as timm does for the architecture",)
    document = read_json(path)
    try:
        return read_processor(document), ()
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _labels(path: Path, document: Mapping[str, Any]) -> tuple[Label, ...] | None:
    """The labels of `id2label`; None where there is none."""
    try:
        return read_labels(path) if document.get("id2label") else None
    except ValueError as error:  # it names the file
        raise CheckpointError(f"{error} (id2label)") from None


def _placed(state: dict[str, Tensor], args: Mapping[str, Any], antialias: bool) -> dict[str, Tensor]:
    """DINOv2's positions resized to the images, as transformers does it at every call; the class token's apart where
    registers stand between it and the patches."""
    positions, token = state.get("pos_embed"), state.get("cls_token")
    if positions is None or token is None or positions.dim() != 3 or positions.shape[1] < 2:
        return state
    side, grid = math.isqrt(positions.shape[1] - 1), args["img_size"] // args["patch_size"]
    first, patches = positions[:, :1], positions[:, 1:]
    if side != grid and side * side == patches.shape[1]:
        square = patches.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
        square = F.interpolate(square, (grid, grid), mode="bicubic", align_corners=False, antialias=antialias)
        patches = square.flatten(2).transpose(1, 2)
    if args.get("no_embed_class") and token.shape[-1:] == first.shape[-1:]:
        return {**state, "cls_token": token + first, "pos_embed": patches}
    return {**state, "pos_embed": torch.cat([first.to(patches), patches], 1)}
