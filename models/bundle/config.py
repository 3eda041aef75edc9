"""BundleConfig holds what a bundle says about its model, as plain data, and has its JSON form."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Literal

from ..architectures.arch_args import MAX_CLASSES
from ..confidence import ConfidenceThreshold
from ..errors import BundleError, quoted
from ..layers.layer_spec import LayerSpec
from ..layers.token_plan import ALL_TOKENS, TokenPlan
from .golden import check_record
from .graph_record import GRAPH, GraphRecord
from .labels import Label
from .program_record import ACTIVATIONS, OPERATORS, ProgramRecord
from .strict_json import canonical_json

FORMAT = 1
PRECISIONS = ("bfloat16", "float16", "int8")
STORAGES = ("float32", *PRECISIONS)
"""Number types that a layer's weights can have in the file."""

FALLBACK = "bfloat16"
"""The precision of a layer that int8 does not do for; it has float32's range, so that no weight can be outside it."""

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "feature_extraction")
"""Whether scores are the softmax of all classes or, where an image may have several, the sigmoid of each; as
transformers calls it. The first is what a bundle means that does not say. A model of the last one has no classes: its
outputs are the embedding, and `num_classes` counts their values."""

OutputMeaning = Literal["softmax", "sigmoid", "pooled", "projected"]
"""What a model's outputs become: the probabilities of classes, or the embedding that they are."""

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
MAX_SIZE_PX, MAX_FILES, MAX_LAYERS = 4096, 64, 10_000
MAX_METRICS_BYTES = 1 << 20
"""A server sends the metrics to every client that lists its models."""

REMARKS = {"provenance", "metrics", "golden", "quantisation"}
"""Members, also of graph and program, on which no answer depends."""

_OPTIONAL = {"confidence", "golden", "graph", "problem_type", "program", "storage", "tokens", "widths"}
_PREPROCESS_KEYS = {"size", "crop_pct", "interpolation", "mean", "std"}
_PREPROCESS_CHOICES = {
    "orientation": ("apply", "ignore"),
    "crop_mode": ("center", "center_down", "squash", "squash_down"),
    "jpeg_scaling": ("exact", "fast"),
}
"""Members that may be missing, with their values; the first is what a bundle means that does not say."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class BundleConfig:
    """The content of `config.json`, and the labels that lie beside it.

    Args:
        arch, arch_args: arguments of `create_model`; arch_args holds num_classes.
        widths: hidden units of MLPs and head dims of queries and keys, by name, where fewer than the architecture's.
        structure: layer specs of the structured layers, by name.
        tokens: which tokens the model computes, where that is not all.
        storage: precision of a layer's weights in the file (`storage.py`), by name, where it is not float32.
        problem_type: one of PROBLEM_TYPES.
        preprocess: size in pixels, crop_pct, interpolation, mean, std (of RGB in 0..1).
        confidence: from which score on an answer is sure; None where that is not known.
        provenance: source file and its sha256, the commands since, library versions.
        metrics: what was measured, and on what.
        golden: the torch model's answers to its golden images (`golden.py`); empty where they hold their graph alone.
        graph: what the bundle's graph is, with its own golden answers; None where it holds none.
        program: set where the CPU kernels are to compute the weights, with the golden answers that they are held to.
        files: sha256 of each file of the bundle except config.json, which holds them.
        labels: one for each class, in order.
        bytes_on_disk: size of the bundle's files together; 0 before it is saved.
    """

    arch: str
    arch_args: Mapping[str, Any] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    structure: Mapping[str, LayerSpec] = field(default_factory=dict)
    tokens: TokenPlan = ALL_TOKENS
    storage: Mapping[str, str] = field(default_factory=dict)
    problem_type: str = PROBLEM_TYPES[0]
    preprocess: Mapping[str, Any]
    confidence: ConfidenceThreshold | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    golden: Mapping[str, Any] = field(default_factory=dict)
    graph: GraphRecord | None = None
    program: ProgramRecord | None = None
    labels: tuple[Label, ...] = ()
    format: int = FORMAT
    bytes_on_disk: int = 0

    @property
    def version(self) -> str:
        """The first 12 hex digits of the sha256 of all that an answer depends on, as canonical JSON (sorted, no blanks,
        ASCII): config.json without the members of REMARKS, which holds the hashes of all files."""
        return hashlib.sha256(canonical_json(_without_remarks(self.to_dict()))).hexdigest()[:12]

    @property
    def num_classes(self) -> int:
        """Number of the model's classes, or of what it gives in their place."""
        return int(self.arch_args.get("num_classes", 1000))

    @property
    def embeds(self) -> bool:
        """Whether its outputs are an embedding: it has no classes."""
        return self.problem_type == PROBLEM_TYPES[2]

    @property
    def output_meaning(self) -> OutputMeaning:
        """What its outputs become; "pooled" is what a classifier would read, "projected" what a projection gives."""
        if self.embeds:
            return "projected" if self.arch_args.get("classifier", True) else "pooled"
        return "softmax" if self.problem_type == PROBLEM_TYPES[0] else "sigmoid"

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json."""
        return {
            "format": self.format,
            "arch": self.arch,
            "arch_args": dict(self.arch_args),
            **({"widths": dict(self.widths)} if self.widths else {}),
            "structure": {name: layer.to_dict() for name, layer in self.structure.items()},
            **({"tokens": self.tokens.to_dict()} if self.tokens else {}),
            **({"storage": dict(self.storage)} if self.storage else {}),
            **({"problem_type": self.problem_type} if self.problem_type != PROBLEM_TYPES[0] else {}),
            "preprocess": dict(self.preprocess),
            **({"confidence": self.confidence.to_dict()} if self.confidence is not None else {}),
            "provenance": dict(self.provenance),
            "metrics": dict(self.metrics),
            "files": dict(self.files),
            **({"golden": dict(self.golden)} if self.golden else {}),
            **({"graph": self.graph.to_dict()} if self.graph is not None else {}),
            **({"program": self.program.to_dict()} if self.program is not None else {}),
        }

    @property
    def graph_only(self) -> bool:
        """Whether the bundle holds its graph alone: no weights that torch could load."""
        return self.graph is not None and "model.safetensors" not in self.files

    @property
    def int8_layers(self) -> tuple[str, ...]:
        """Layers whose weights are int8 in the file."""
        return tuple(name for name, precision in self.storage.items() if precision == "int8")

    @classmethod
    def from_dict(cls, document: Any) -> "BundleConfig":
        """Read a parsed config.json; labels and bytes_on_disk are left empty.

        Raises:
            BundleError: an unknown format, or a value missing or outside its limits.
        """
        _require(isinstance(document, dict), f"must be a JSON object, not {quoted(document, 40)}")
        _check_format(document.get("format"))
        known = {f.name for f in fields(cls)} - {"labels", "bytes_on_disk"}
        _require(set(document) <= known, f"unknown member {quoted(next(iter(set(document) - known), None))}")
        for name in sorted(known - set(document) - _OPTIONAL):
            raise BundleError(f"member {name!r} is missing")
        _require(isinstance(document["arch"], str), f"arch {quoted(document['arch'])} must be a string")
        for name in sorted((known & set(document)) - {"arch", "format", "problem_type"}):
            _require(isinstance(document[name], dict), f"{name} {quoted(document[name], 40)} must be an object")
        classes = document["arch_args"].get("num_classes", 1000)
        in_range = type(classes) is int and 1 <= classes <= MAX_CLASSES
        _require(in_range, f"arch_args: num_classes {quoted(classes)} must be between 1 and {MAX_CLASSES}")
        task = document.get("problem_type", PROBLEM_TYPES[0])
        _require(task in PROBLEM_TYPES, f"problem_type {quoted(task)} must be one of {', '.join(PROBLEM_TYPES)}")
        _check_metrics(document["metrics"])
        _check_files(document["files"])
        check_preprocess(document["preprocess"])
        _check_layers("storage", document.get("storage", {}), _is_precision, f"one of {', '.join(PRECISIONS)}")
        _check_layers("widths", document.get("widths", {}), _is_width, "a whole number above 0")
        if document.get("golden"):
            check_record(document["golden"], classes)
        files = document["files"]
        graph = GraphRecord.from_dict(document["graph"], classes) if "graph" in document else None
        _require((graph is None) == (GRAPH not in files), f"files: {GRAPH} and member graph belong together")
        program = ProgramRecord.from_dict(document["program"], classes) if "program" in document else None
        int8 = program is not None and program.precision == "int8"
        _require(int8 == (ACTIVATIONS in files), f"files: {ACTIVATIONS} and a program of int8 belong together")
        _require(program is not None or OPERATORS not in files, f"files: {OPERATORS} needs a program")
        _require(program is None or "model.safetensors" in files, "program: needs weights (model.safetensors)")
        _check_count("structure", layers := document["structure"])
        structure = {name: _parsed(LayerSpec.from_dict, layers[name], _layer("structure", name)) for name in layers}
        tokens = _parsed(TokenPlan.from_dict, document.get("tokens", {}))
        sure = ConfidenceThreshold.from_dict(document["confidence"]) if "confidence" in document else None
        parsed = {"structure": structure, "tokens": tokens, "confidence": sure, "graph": graph, "program": program}
        return cls(**{**document, **parsed})


def _without_remarks(document: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in document.items() if name not in REMARKS}
    return kept | {name: _without_remarks(kept[name]) for name in {"graph", "program"} & set(kept)}


def check_preprocess(values: Mapping[str, Any]) -> None:
    """Refuse preprocessing that loaders cannot or should not do.

    Raises:
        BundleError: names the member, its value and the limit.
    """
    missing = sorted(_PREPROCESS_KEYS - set(values))
    _require(not missing, f"preprocess: {', '.join(missing)} missing")
    unknown = sorted(set(values) - _PREPROCESS_KEYS - _PREPROCESS_CHOICES.keys())
    _require(not unknown, f"preprocess: unknown member {quoted(unknown[:1])}")
    size, crop_pct = values["size"], values["crop_pct"]
    _require(
        type(size) is int and 1 <= size <= MAX_SIZE_PX,
        f"preprocess: size {quoted(size)} must be between 1 and {MAX_SIZE_PX} px",
    )
    # Below 0.05 the shorter side would be resized to more than twenty times the crop.
    _require(_finite(crop_pct) and 0.05 <= crop_pct <= 1, f"preprocess: crop_pct {quoted(crop_pct)} must be 0.05 to 1")
    _require(
        values["interpolation"] in INTERPOLATIONS,
        f"preprocess: interpolation {quoted(values['interpolation'])} must be one of {', '.join(INTERPOLATIONS)}",
    )
    for name, choices in _PREPROCESS_CHOICES.items():
        _require(
            values.get(name, choices[0]) in choices,
            f"preprocess: {name} {quoted(values.get(name))} must be {' or '.join(choices)}",
        )
    for name, least in (("mean", -1e3), ("std", 1e-6)):
        triple = values[name]
        three = isinstance(triple, list | tuple) and len(triple) == 3
        _require(
            three and all(_finite(value) and least <= value <= 1e3 for value in triple),
            f"preprocess: {name} {quoted(triple)} must be three numbers between {least:g} and 1000",
        )


def _parsed(read: Callable[[Any], Any], value: Any, where: str = "") -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise BundleError(f"{where}{error}") from None


def _check_layers(member: str, values: Mapping[str, Any], fits: Callable[[Any], bool], limit: str) -> None:
    _check_count(member, values)
    for name, value in values.items():
        _require(fits(value), f"{_layer(member, name)}{quoted(value)} must be {limit}")


def _layer(member: str, name: str) -> str:
    return f"{member}: layer {quoted(name)}: "


def _is_precision(value: Any) -> bool:
    return isinstance(value, str) and value in PRECISIONS


def _is_width(value: Any) -> bool:
    return type(value) is int and value >= 1


def _check_count(member: str, layers: Mapping[str, Any]) -> None:
    _require(len(layers) <= MAX_LAYERS, f"{member}: {len(layers)} layers, the limit is {MAX_LAYERS}")


def _check_format(number: Any) -> None:
    if type(number) is int and number > FORMAT:
        raise BundleError(f"format {number} is newer than the {FORMAT} this milkweed reads: update milkweed")
    _require(type(number) is int and number == FORMAT, f"format {quoted(number)} must be {FORMAT}")


def _check_metrics(metrics: Mapping[str, Any]) -> None:
    size = len(canonical_json(metrics))
    _require(size <= MAX_METRICS_BYTES, f"metrics: {size} bytes of JSON, the limit is {MAX_METRICS_BYTES}")


def _check_files(files: Mapping[str, Any]) -> None:
    _require(len(files) <= MAX_FILES, f"files: {len(files)} names, the limit is {MAX_FILES}")
    for name, digest in files.items():
        # Plain names only: nothing outside the folder is ever opened.
        _require(
            _FILE_NAME.fullmatch(name) is not None and name != "config.json",
            f"files: {quoted(name)} is not the plain name of a file in the bundle",
        )
        _require(
            isinstance(digest, str) and _SHA256.fullmatch(digest) is not None,
            f"files: {name} needs a sha256 of 64 hex digits, not {quoted(digest)}",
        )
    for name in ("labels.json", *(["model.safetensors"] if GRAPH not in files else [])):
        _require(name in files, f"files: {name} is missing")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise BundleError(problem)
