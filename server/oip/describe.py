"""What the protocol's clients ask about the server and its models: metadata, configuration, statistics."""

from collections.abc import Iterable
from typing import Any

from ..metrics import package_version
from ..served import ServedModel
from ..service import Service
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


def version_of(model: ServedModel) -> str:
    """Its number where it has one, as Triton's versions are; else what its bundle says. Either may be asked for."""
    return model.number or model.version


def model_metadata(model: ServedModel, versions: Iterable[ServedModel]) -> dict[str, Any]:
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


def model_config(model: ServedModel) -> dict[str, Any]:
    """Triton's configuration, as far as there is one: no batch axis of Triton's own, every shape as in the metadata."""
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
    }


def repository_index(service: Service, *, ready_only: bool) -> list[dict[str, str]]:
    """Every model of the service, and whether it can be asked."""
    if not service.models:
        return [] if ready_only else [_entry(name, "", "LOADING") for name in service.bundles]
    return [_entry(model.name, version_of(model), "READY") for model in service.models.every()]


def statistics(service: Service, models: list[ServedModel]) -> list[dict[str, Any]]:
    """Triton's statistics, from our metrics: answered requests alone, of whatever protocol and version."""
    metrics = service.metrics
    sums, counts = _samples(metrics.stage_duration, "stage")
    executions = {model: count for (model, _), count in _samples(metrics.batch_size, None)[1].items()}
    images = {
        sample.labels["model"]: sample.value
        for family in metrics.images.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.labels["outcome"] == "ok"
    }
    found = []
    for model in models:
        name = model.name
        requests = int(counts.get((name, "respond"), 0))
        whole = sum(seconds for (of, _), seconds in sums.items() if of == name)
        durations = {
            word: {"count": requests, "ns": round(1e9 * sum(sums.get((name, stage), 0.0) for stage in stages))}
            for word, stages in _STAGES.items()
        }
        found.append(
            {
                "name": name,
                "version": version_of(model),
                "inference_count": int(images.get(name, 0)),
                "execution_count": int(executions.get(name, 0)),
                "inference_stats": {"success": {"count": requests, "ns": round(1e9 * whole)}, **durations},
            }
        )
    return found


def _samples(histogram: Any, label: str | None) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Sums and counts of a histogram by model and one more label."""
    sums: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], float] = {}
    for family in histogram.collect():
        for sample in family.samples:
            key = (sample.labels["model"], sample.labels[label] if label else "")
            if sample.name.endswith("_sum"):
                sums[key] = sample.value
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
    return sums, counts


def _entry(name: str, version: str, state: str) -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": ""}


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _dims(output: str, model: ServedModel) -> list[int]:
    if output == "error":
        return [-1]
    return [-1, model.num_classes if output == "probabilities" else -1]
