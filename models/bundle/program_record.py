"""ProgramRecord holds what config.json says about a bundle's weights as the CPU kernels compute them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BundleError, quoted
from .golden import check_record
from .graph_record import COUNTS, is_counts
from .safetensors_file import TensorEntry, read_arrays

OPERATORS = "program.safetensors"
"""The file of the program itself, which our kernels compute without torch; optional."""

ACTIVATIONS = "activations.safetensors"
"""The file of the largest magnitude of each channel of the inputs of each layer: float32 (channels,), by name."""

PRECISIONS = ("bfloat16", "int8")

MAX_CHANNELS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProgramRecord:
    """The member `program` of config.json: the CPU kernels are what the bundle was made for and evaluated with.

    Args:
        precision: one of PRECISIONS. int8 needs ACTIVATIONS.
        golden: the float model's answers to the golden images (`golden.py`); the kernels' own in older bundles.
        counts: COUNTS of the model, so that a server need not build it; empty where a bundle does not say them.
    """

    precision: str
    golden: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        counts = {"counts": dict(self.counts)} if self.counts else {}
        return {"precision": self.precision, "golden": dict(self.golden), **counts}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], num_classes: int) -> "ProgramRecord":
        """Read the JSON form.

        Raises:
            BundleError: a member is missing, unknown or outside its limits.
        """
        known = {"precision", "golden"}
        if odd := sorted((set(document) - {"counts"}) ^ known):
            raise BundleError(f"program: member {quoted(odd[0])} is {'missing' if odd[0] in known else 'unknown'}")
        precision, golden = document["precision"], document["golden"]
        if precision not in PRECISIONS:
            raise BundleError(f"program: precision {quoted(precision)} must be one of {', '.join(PRECISIONS)}")
        if not isinstance(golden, dict):
            raise BundleError(f"program: golden {quoted(golden, 40)} must be an object")
        check_record(golden, num_classes)
        counts = document.get("counts", {})
        if not is_counts(counts):
            raise BundleError(f"program: counts must be whole numbers: {', '.join(COUNTS)}")
        return cls(precision=precision, golden=golden, counts=counts)


def read_activations(path: Path, sha256: str | None = None) -> dict[str, NDArray[np.float32]]:
    """Read the ACTIVATIONS of a bundle.

    Args:
        sha256: as its config says it; None where it has none.

    Raises:
        BundleError: it is another file, or holds anything but vectors of finite numbers from 0 on; names the tensor.
    """
    try:
        file = read_arrays(path / ACTIVATIONS, _check_entries)
        if sha256 not in (None, file.sha256):
            raise ValueError("was replaced after its config was read")
        for name, values in file.arrays.items():
            if not (np.isfinite(values) & (values >= 0)).all():
                raise ValueError(f"{quoted(name)} holds a number that is below 0 or not finite")
    except ValueError as error:
        raise BundleError(f"{ACTIVATIONS}: {error}") from None
    return file.arrays


def _check_entries(entries: Mapping[str, TensorEntry]) -> None:
    for name, entry in entries.items():
        if entry.dtype != "float32" or len(entry.shape) != 1 or not 0 < entry.shape[0] <= MAX_CHANNELS:
            shape = list(entry.shape)
            raise ValueError(
                f"{quoted(name)} is {entry.dtype} {shape}: must be float32 of 1 to {MAX_CHANNELS} channels"
            )
