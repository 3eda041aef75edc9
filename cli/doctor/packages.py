"""Checks the optional packages: what each adds, whether it is installed, and whether the settings ask for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ...server.config.settings import OFF, Settings
from .finding import Finding
from .system_info import SystemInfo


@dataclass(frozen=True)
class Extra:
    """An extra of milkweed's package.

    Args:
        packages: the names of the packages that it installs.
        gives: what it is for.
        gpu_only: whether it is useless where there is no GPU.
    """

    name: str
    packages: tuple[str, ...]
    gives: str
    gpu_only: bool = False


_row = partial(Finding, "packages")

EXTRAS = (
    Extra("dali", ("nvidia-dali-cuda130",), "decodes JPEGs on the GPU", gpu_only=True),
    Extra("nvml", ("nvidia-ml-py",), "tells who holds GPU memory, in the metrics", gpu_only=True),
    Extra("grpc", ("grpcio", "protobuf"), "Open Inference Protocol over gRPC (--grpc-port)"),
    Extra("otel", ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "traces (--otlp-endpoint)"),
    Extra("onnx", ("onnx", "onnxruntime", "onnxscript"), "`milkweed export --onnx`, and --backend other than torch"),
    Extra("torch", ("torch", "timm", "safetensors", "huggingface-hub"), "makes models, and serves their weights"),
    Extra("openvino", ("openvino",), "--backend openvino or auto, together with onnx"),
    Extra("train", ("matplotlib", "jinja2"), "`milkweed train`, reports of `compress`, and all plots"),
)


def package_findings(facts: SystemInfo, settings: Settings) -> Iterator[Finding]:
    """Make a row for each extra."""
    asked = {
        "grpc": settings.grpc_port and f"grpc_port = {settings.grpc_port}",
        "otel": settings.otlp_endpoint != OFF and f"otlp_endpoint = {settings.otlp_endpoint}",
        "dali": settings.loader == "dali" and "loader = dali",
        "onnx": settings.backend in ("onnxruntime", "openvino") and f"backend = {settings.backend}",
        "openvino": settings.backend == "openvino" and "backend = openvino",
    }
    for extra in EXTRAS:
        yield _extra(extra, facts, str(asked.get(extra.name) or ""))


def _extra(extra: Extra, facts: SystemInfo, asked: str) -> Finding:
    lacking = [name for name in extra.packages if name not in facts.packages]
    if not lacking:
        found = ", ".join(f"{name} {facts.packages[name]}" for name in extra.packages)
        idle = "; there is no GPU to use it for" if extra.gpu_only and not facts.gpus else ""
        return _row(extra.name, "ok", f"{extra.gives}; {found}{idle}")
    fix = f"pip install 'milkweed[{extra.name}]'"
    missing = f"{extra.gives}; not installed: {', '.join(lacking)}"
    if asked:
        return _row(extra.name, "broken", f"{asked} needs {', '.join(lacking)}", fix)
    if extra.gpu_only and not facts.gpus:
        return _row(extra.name, "ok", f"{missing}; without a GPU nothing is lost")
    return _row(extra.name, "missing", missing, fix)
