"""What the protocol's clients ask about the server and its models: metadata, configuration, statistics."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..config.settings import Settings
from ..repository.model_info import ModelInfo
from ..service.service import Service
from ..telemetry.metrics import package_version
from ..telemetry.statistics import ModelStatistics
from .images import ENCODED, PIXELS
from .outputs import DATATYPES

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "parameters", "statistics")
PLATFORM = "milkweed"

# Triton's statistics and the stages of ours that they hold.
_STAGES = {
    "queue": ("queue",),
    "compute_input": ("decode", "ready"),
    "compute_infer": ("forward",),
    "compute_output": ("postprocess",),
}


def server_metadata() -> dict[str, Any]:
    """Name, version, extensions."""
    return {"name": "milkweed", "version": package_version(), "extensions": list(EXTENSIONS)}


def version_of(model: ModelInfo) -> str:
    """Its number where it has one, as Triton's versions are; else what its bundle says. Either may be asked for."""
    return model.number or model.version


def model_metadata(model: ModelInfo, versions: Iterable[ModelInfo]) -> dict[str, Any]:
    """Its versions and tensors; `pixels` is also taken as FP32 and FP16, which has no place here."""
    inputs = [_tensor(ENCODED, "BYTES", [-1]), _tensor(PIXELS, "UINT8", [-1, -1, -1, 3])]
    outputs = [_tensor(name, datatype, _dims(name, model)) for name, datatype in DATATYPES.items()]
    return {
        "name": model.name,
        "versions": [version_of(each) for each in versions],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
    }


def model_config(settings: Settings, model: ModelInfo) -> dict[str, Any]:
    """Triton's configuration, as far as there is one: no batch axis of Triton's own, every shape as in the metadata.

    Its `parameters` are what counts for requests to this model.
    """
    inputs = [
        {"name": ENCODED, "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
        {"name": PIXELS, "data_type": "TYPE_UINT8", "dims": [-1, -1, -1, 3], "optional": True},
    ]
    words = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP32": "TYPE_FP32"}
    outputs = [
        {"name": name, "data_type": words[datatype], "dims": _dims(name, model)} for name, datatype in DATATYPES.items()
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


def repository_index(service: Service, *, ready_only: bool) -> list[dict[str, str]]:
    """Every model of the service, and whether it can be asked."""
    if not service.models:
        return [] if ready_only else [_entry(name, "", "LOADING") for name in service.names]
    return [_entry(model.name, version_of(model), "READY") for model in service.models.every()]


def statistics(models: Iterable[ModelInfo], counted: Mapping[str, ModelStatistics]) -> list[dict[str, Any]]:
    """Triton's statistics: answered requests alone, of whatever protocol and version."""
    found = []
    for model in models:
        of = counted.get(model.name, ModelStatistics())
        durations = {
            word: {"count": of.requests, "ns": round(1e9 * sum(of.stage_seconds.get(stage, 0.0) for stage in stages))}
            for word, stages in _STAGES.items()
        }
        whole = {"count": of.requests, "ns": round(1e9 * sum(of.stage_seconds.values()))}
        found.append(
            {
                "name": model.name,
                "version": version_of(model),
                "inference_count": of.images,
                "execution_count": of.batches,
                "inference_stats": {"success": whole, **durations},
            }
        )
    return found


def _entry(name: str, version: str, state: str) -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": ""}


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _dims(output: str, model: ModelInfo) -> list[int]:
    if output == "error":
        return [-1]
    return [-1, model.num_classes if output == "probabilities" else -1]
