"""Describes the server and its models to clients of the protocol: metadata, configuration, statistics."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..config.settings import Settings
from ..repository.index import ModelIndex
from ..repository.served_model import ServedModel
from ..telemetry.metrics import package_version
from ..telemetry.statistics import ModelStatistics
from .images import ENCODED, PIXELS
from .options import OUTPUTS

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "parameters", "statistics")
PLATFORM = "milkweed"

# Triton's durations, and the stages of ours that each adds up.
_STAGES = {
    "queue": ("queue",),
    "compute_input": ("decode", "ready"),
    "compute_infer": ("forward",),
    "compute_output": ("postprocess",),
}


def server_metadata() -> dict[str, Any]:
    """Describe the server: name, version, extensions."""
    return {"name": "milkweed", "version": package_version(), "extensions": list(EXTENSIONS)}


def version_of(model: ServedModel) -> str:
    """Return its repository number, as Triton does, or without one the bundle's version; both can be requested."""
    return model.number or model.version


def model_metadata(model: ServedModel, versions: Iterable[ServedModel]) -> dict[str, Any]:
    """Describe versions and tensors; `pixels` may also be FP32 or FP16, which the protocol has no field for."""
    inputs = [_tensor(ENCODED, "BYTES", [-1]), _tensor(PIXELS, "UINT8", [-1, -1, -1, 3])]
    outputs = [_tensor(name, datatype, _dims(name, model)) for name, datatype in _outputs(model).items()]
    return {
        "name": model.name,
        "versions": [version_of(version) for version in versions],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
    }


def model_config(settings: Settings, model: ServedModel) -> dict[str, Any]:
    """Describe the model as Triton's configuration does, with no batch axis of its own: shapes are as in the metadata.

    Its `parameters` are the limits of requests to this model.
    """
    inputs = [
        {"name": ENCODED, "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
        {"name": PIXELS, "data_type": "TYPE_UINT8", "dims": [-1, -1, -1, 3], "optional": True},
    ]
    words = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP32": "TYPE_FP32"}
    outputs = [
        {"name": name, "data_type": words[datatype], "dims": _dims(name, model)}
        for name, datatype in _outputs(model).items()
    ]
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": outputs,
        "parameters": {name: {"string_value": str(n)} for name, n in settings.limits_of(model.name).items()},
    }


def repository_index(
    models: ModelIndex, failures: Iterable[tuple[str, str]], names: Iterable[str], ready_only: bool
) -> list[dict[str, str]]:
    """List every model, and whether it is ready; before any is, the `names` of those that load. `failures`: name and
    number of each that cannot be served."""
    if not (models or failures):
        return [] if ready_only else [_entry(name, "", "LOADING") for name in names]
    failed = [] if ready_only else [_entry(*key, "UNAVAILABLE", "could not be loaded") for key in failures]
    return [_entry(model.name, version_of(model), "READY") for model in models.every()] + failed


def statistics(models: Iterable[ServedModel], counted: Mapping[str, ModelStatistics]) -> list[dict[str, Any]]:
    """Give Triton's statistics; they count answered requests only, over all protocols and versions of a model."""
    entries = []
    for model in models:
        counts = counted.get(model.name, ModelStatistics())
        seconds = {"success": sum(counts.stage_seconds.values())}
        for word, stages in _STAGES.items():
            seconds[word] = sum(counts.stage_seconds.get(stage, 0.0) for stage in stages)
        durations = {word: {"count": counts.requests, "ns": round(1e9 * spent)} for word, spent in seconds.items()}
        entries.append(
            {
                "name": model.name,
                "version": version_of(model),
                "inference_count": counts.images,
                "execution_count": counts.batches,
                "inference_stats": durations,
            }
        )
    return entries


def _entry(name: str, version: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _outputs(model: ServedModel) -> dict[str, str]:
    if not model.num_classes:
        return {name: OUTPUTS[name] for name in ("embedding", "error")}
    return {name: datatype for name, datatype in OUTPUTS.items() if name != "embedding" or model.embedding_width}


def _dims(output: str, model: ServedModel) -> list[int]:
    if output == "error":
        return [-1]
    return [-1, {"probabilities": model.num_classes, "embedding": model.embedding_width}.get(output, -1)]
