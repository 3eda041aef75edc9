"""Models for the CPU kernels as bundles store them: weights in bfloat16, or in int8 with activations beside."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels.cpu.program import Factor
from ..bundle.golden import check_divergence, golden_images, golden_record, softmax
from ..bundle.program_record import ACTIVATIONS, ProgramRecord, read_activations
from ..bundle.safetensors_file import write_tensors
from ..bundle.storage import as_stored, storable_weights, stored_tensors
from ..serving.fused.chains import NotFusable
from .compact import Activations
from .file import stored
from .from_model import program_of
from .int8 import calibrate, int8_program, int8_storage
from .session import ProgramSession, kernels_refusal

CALIBRATING, BATCH = 128, 8
"""So many images are enough for the largest activations; so many are computed at a time."""


@dataclass(frozen=True)
class StoredProgram:
    """What a bundle holds for the CPU kernels.

    Args:
        model: in float32.
        storage: the precision of the weights in the file, by layer.
        activations: the largest ones of each channel, by layer; None in bfloat16.
    """

    model: nn.Module
    storage: Mapping[str, str]
    activations: Activations | None = None

    @property
    def precision(self) -> str:
        return "bfloat16" if self.activations is None else "int8"

    @property
    def loaded(self) -> nn.Module:
        """The model that a reader of the bundle gets."""
        return as_stored(self.model, self.storage)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The content of the bundle's file of activations."""
        return {name: torch.from_numpy(values) for name, values in (self.activations or {}).items()}

    def linears(self, size: int) -> list[str]:
        """Return the layers that have activations and are no convolutions, for images of this side, px."""
        names = (part.name for part in program_of(self.model, size).operators if isinstance(part, Factor))
        return list(dict.fromkeys(name.removesuffix(".w1") for name in names if name in (self.activations or {})))

    def operators(self, size: int, storage: Mapping[str, str] | None = None) -> bytes:
        """The content of the bundle's file of the program, for images of this side, px. It has weights of its own where
        the bundle's are in another `storage`, of another precision."""
        storage = self.storage if storage is None else storage
        weights = stored_tensors(self.model, storage) if self.precision in storage.values() else None
        return stored(program_of(self.loaded, size), self.activations, weights=weights)

    def record(self, size: int) -> ProgramRecord:
        """The record of the program, whose answers are near the model's in float32.

        Raises:
            BundleError: they are not: kernels compute something else, or this precision does not do for the model.
            ExportError: the kernels cannot be used here.
            NotFusable: they have no operator for a part of the model.
        """
        model, activations = self.loaded, self.activations
        golden = golden_record(model, size)
        program = program_of(model, size) if activations is None else int8_program(model, size, activations)
        check_divergence(golden, softmax(ProgramSession(program)(golden_images(size))), self.precision, 0.5)
        return ProgramRecord(precision=self.precision, golden=golden)

    def contents(self, size: int, storage: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What `save_bundle` takes of it, with `storage` as in `operators`; raises as `record`."""
        return {
            "model": self.model,
            "storage": self.storage if storage is None else storage,
            "program": self.record(size),
            "activations": self.tensors or None,
            "operators": self.operators(size, storage),
        }


def ours_refusal(model: nn.Module, size: int) -> str | None:
    """Why the CPU kernels cannot compute a model here; None where they can."""
    try:
        program_of(model, size)
    except NotFusable as error:
        return str(error)
    return kernels_refusal()


def stored_bfloat16(model: nn.Module) -> StoredProgram:
    """Return a model with all its weights in bfloat16."""
    return StoredProgram(model, dict.fromkeys(storable_weights(model), "bfloat16"))


def stored_int8(
    model: nn.Module, size: int, images: Tensor, folder: Path, ignored_layers: Collection[str] = ()
) -> StoredProgram:
    """Return a model in int8, calibrated on images unless the folder has what was found.

    Args:
        ignored_layers: that stay in bfloat16.

    Raises:
        NotFusable: the kernels have no operator for a part of the model, or compute no such layer in int8.
    """
    if not folder.exists():
        activations = calibrate(model, size, images[:: -(-len(images) // CALIBRATING)].split(BATCH))
        partial = folder.with_suffix(".partial")
        partial.mkdir(exist_ok=True)
        write_tensors(partial / ACTIVATIONS, {name: torch.from_numpy(values) for name, values in activations.items()})
        partial.rename(folder)
    activations = read_activations(folder)
    if unknown := set(ignored_layers) - set(activations):
        raise NotFusable(f"ignored_layers: {min(unknown)} is no layer in int8: it has {', '.join(activations)[:200]}")
    ignored = {*ignored_layers, *(f"{layer}.w1" for layer in ignored_layers)}
    activations = {name: values for name, values in activations.items() if name not in ignored}
    return StoredProgram(model, int8_storage(model, activations), activations)
