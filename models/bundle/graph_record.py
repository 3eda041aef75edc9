"""GraphRecord holds what config.json says about the graph of a bundle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BundleError, quoted
from .golden import check_record

GRAPH = "graph.onnx"
"""The file of a bundle's graph."""

MAX_OPSET = 20
"""The newest opset that a graph may be of: all runtimes that are supported know it."""

PRECISIONS = ("float32", "bfloat16", "int8")
BACKENDS = ("onnxruntime", "openvino")

COUNTS = ("macs", "dense_values")
"""Multiply-accumulates of one image; the numbers that the model would hold if every structured layer were dense."""


@dataclass(frozen=True, kw_only=True)
class GraphRecord:
    """The member `graph` of config.json.

    Args:
        precision: one of PRECISIONS; int8 is that of the layers that are quantised, bfloat16 that of the weights in the
            file. All else is float32, which a backend may compute in bfloat16.
        opset: the version of ONNX's operators.
        backends: those of BACKENDS whose answers to the golden images were compared when the graph was made.
        quantisation: how it was quantised, as plain data; empty where it was not.
        golden: the graph's own answers to the golden images (`golden.py`), by the first of `backends`.
        counts: COUNTS of the model, so that a server need not build it; empty where a bundle does not say them.
    """

    precision: str
    opset: int
    backends: tuple[str, ...]
    quantisation: Mapping[str, Any] = field(default_factory=dict)
    golden: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "file": GRAPH,
            "precision": self.precision,
            "opset": self.opset,
            "backends": list(self.backends),
            "quantisation": dict(self.quantisation),
            "golden": dict(self.golden),
            **({"counts": dict(self.counts)} if self.counts else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], num_classes: int) -> "GraphRecord":
        """Read the JSON form.

        Raises:
            BundleError: a member is missing, unknown or outside its limits.
        """
        known = {"file", "precision", "opset", "backends", "quantisation", "golden"}
        if odd := sorted((set(document) - {"counts"}) ^ known):
            raise BundleError(f"graph: member {quoted(odd[0])} is {'missing' if odd[0] in known else 'unknown'}")
        file, precision, opset, backends = (document[name] for name in ("file", "precision", "opset", "backends"))
        _require(file == GRAPH, f"file {quoted(file)} must be {GRAPH}")
        _require(precision in PRECISIONS, f"precision {quoted(precision)} must be one of {', '.join(PRECISIONS)}")
        _require(type(opset) is int and opset >= 1, f"opset {quoted(opset)} must be a whole number from 1 on")
        _require(opset <= MAX_OPSET, f"opset {opset} is newer than the {MAX_OPSET} this milkweed runs: update milkweed")
        some = isinstance(backends, list) and backends and all(name in BACKENDS for name in backends)
        _require(bool(some), f"backends {quoted(backends)} must be some of {', '.join(BACKENDS)}")
        for name in ("quantisation", "golden"):
            _require(isinstance(document[name], dict), f"{name} {quoted(document[name], 40)} must be an object")
        check_record(document["golden"], num_classes)
        counts = document.get("counts", {})
        _require(is_counts(counts), f"counts must be whole numbers: {', '.join(COUNTS)}")
        others = {name: document[name] for name in ("precision", "opset", "quantisation", "golden")}
        return cls(backends=tuple(backends), counts=counts, **others)


def is_counts(counts: Any) -> bool:
    """Whether a member may stand for COUNTS: whole numbers, all of them or none."""
    whole = isinstance(counts, dict) and all(type(count) is int and count >= 0 for count in counts.values())
    return whole and set(counts) in (set(), set(COUNTS))


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise BundleError(f"graph: {problem}")
