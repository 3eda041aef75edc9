"""EmbeddingHead: a classifier on a model's embedding, linear or by the nearest images, and the file that holds one.

That is a safetensors file of `weight` (rows, width), maybe `bias` (rows) and `scale`; its metadata has `labels` (a JSON
list), `normalize` (true or false) and maybe `model_version`. A row is a class; with `classes` (rows) it is an image of
that class, and the metadata has `k`.
"""

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle.labels import Label, labels_document, parse_labels
from ..bundle.safetensors_file import DTYPES, TensorEntry, parse_arrays
from ..bundle.strict_json import canonical_json, parse_json
from ..errors import quoted

MAX_HEAD_BYTES = 64 << 20
"""Enough for 21,000 classes and width 768 in float32."""

_SHAPES = {"weight": "(rows, width)", "bias": "(rows)", "scale": "()", "classes": "(rows)"}
_DTYPES = {**dict.fromkeys(("weight", "bias", "scale"), ("F32", "F16")), "classes": ("I32",)}
"""The types that a tensor may have; it is written in the first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingHead:
    """Gives the softmax of `scale * (weight @ embedding + bias)`, by rows; or by classes that of the k nearest rows.

    Args:
        weight: (rows, width), in float64, which what fits into float32 cannot overflow.
        bias: (rows,).
        normalize: embeddings are scaled to length 1 before.
        model_version: of the bundle that it was fitted on; empty where that is not known.
        version: 12 hex digits of the sha256 of its file; empty before there is one.
        classes: (rows,), of each row its class; None where rows are the classes.
        k: of so many rows, those with the largest logits, a class has its share; 0 without `classes`.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    scale: float
    labels: tuple[Label, ...]
    normalize: bool = True
    model_version: str = ""
    version: str = ""
    classes: NDArray[np.int64] | None = None
    k: int = 0

    @property
    def width(self) -> int:
        """Values of the embeddings that it takes."""
        return self.weight.shape[1]

    def probabilities(self, embedding: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probability of each class, of one embedding (width,)."""
        values = normalized(embedding) if self.normalize else np.float64(embedding)
        # Not by BLAS: its threads would take cores from forwards, and it sums batches of other sizes in another order.
        logits = self.scale * (np.einsum("cw,w->c", self.weight, values) + self.bias)
        nearest = np.argpartition(-logits, self.k - 1)[: self.k] if 0 < self.k < len(logits) else np.arange(len(logits))
        powers: NDArray[Any] = np.exp(logits[nearest] - logits.max())
        if self.classes is not None:
            powers = np.bincount(self.classes[nearest], powers, len(self.labels))
        return (powers / powers.sum()).astype(np.float32)

    def to_bytes(self) -> bytes:
        """The content of its file, always the same for the same head."""
        about = {"labels": json.dumps(labels_document(self.labels)), "model_version": self.model_version}
        about |= {"normalize": str(self.normalize).lower(), **({"k": str(self.k)} if self.k else {})}
        header: dict[str, Any] = {"__metadata__": about}
        data = b""
        for name, (code, *_) in _DTYPES.items():
            if (values := getattr(self, name)) is not None:
                array = np.asarray(values, DTYPES[code])
                offsets = len(data), len(data) + array.nbytes
                header[name] = {"dtype": code, "shape": array.shape, "data_offsets": offsets}
                data += array.tobytes()
        text = canonical_json(header)
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + data


def normalized(embeddings: NDArray[Any]) -> NDArray[np.float64]:
    """Embeddings (..., width) scaled to length 1; zeros stay zeros."""
    values = np.float64(embeddings)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(lengths > 0, lengths, 1)


def parse_head(data: bytes) -> EmbeddingHead:
    """Make a head of the content of its file. Raises ValueError where it is none, one line."""
    if len(data) > MAX_HEAD_BYTES:
        raise ValueError(f"more than {MAX_HEAD_BYTES} bytes, the limit of a head")
    file = parse_arrays(io.BytesIO(data), len(data), _check)
    arrays = {"bias": np.zeros(len(file.arrays["weight"])), "scale": np.ones(()), **file.arrays}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has a value that is not a finite number")
    scale = float(arrays["scale"].item())
    if scale <= 0:
        raise ValueError(f"scale is {scale:g}: must be above 0")
    about = file.metadata if isinstance(file.metadata, dict) else {}
    if about.get("normalize") not in ("true", "false"):
        raise ValueError(f"normalize in its metadata is {quoted(about.get('normalize'))}: must be true or false")
    return EmbeddingHead(
        weight=arrays["weight"].astype(np.float64),
        bias=arrays["bias"].astype(np.float64),
        scale=scale,
        labels=_labels(about.get("labels"), None if "classes" in arrays else len(arrays["weight"])),
        normalize=about["normalize"] == "true",
        model_version=str(about.get("model_version", ""))[:80],
        version=file.sha256[:12],
        **_nearest(arrays, about),
    )


def _check(entries: Mapping[str, TensorEntry]) -> None:
    """Check names, types and shapes before memory is taken."""
    if "weight" not in entries or entries.keys() - _SHAPES:
        raise ValueError(f"its tensors are {quoted(sorted(entries))}: must be weight, maybe bias, scale and classes")
    shape = entries["weight"].shape
    fitting: dict[str, list[tuple[int, ...]]] = {
        "weight": [shape],
        "bias": [shape[:1]],
        "scale": [(), (1,)],
        "classes": [shape[:1]],
    }
    for name, entry in sorted(entries.items(), reverse=True):
        right = entry.shape in fitting[name] and len(shape) == 2 and all(shape)
        if not right or entry.dtype not in [DTYPES[code] for code in _DTYPES[name]]:
            limit = f"{_SHAPES[name]} in {' or '.join(_DTYPES[name])}"
            raise ValueError(f"{name} is {entry.dtype} {list(entry.shape)}: must be {limit}")


def _nearest(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """What says that rows are images, where they are."""
    if (classes := arrays.get("classes")) is None:
        return {}
    k = str(about.get("k"))
    if not (k.isascii() and k.isdigit() and 1 <= int(k[:10]) <= MAX_HEAD_BYTES):
        raise ValueError(f"k in its metadata is {quoted(about.get('k'))}: must be a whole number above 0")
    labels = len(_labels(about.get("labels"), None))
    if classes.min() < 0 or classes.max() >= labels:
        raise ValueError(f"classes are {classes.min()} to {classes.max()}, there are {labels} labels")
    return {"classes": classes.astype(np.int64), "k": int(k)}


def _labels(text: Any, classes: int | None) -> tuple[Label, ...]:
    try:
        labels = parse_labels(parse_json(str(text).encode()))
    except ValueError as error:
        raise ValueError(f"labels in its metadata: {error}") from None
    if classes is not None and len(labels) != classes:
        raise ValueError(f"{len(labels)} labels for {classes} rows of weight")
    [(name, times)] = Counter(label.label for label in labels).most_common(1)
    if times > 1:
        raise ValueError(f"the label {quoted(name)} is there {times} times")
    return labels
