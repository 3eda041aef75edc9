"""Checks the optional packages: what each adds, whether it is installed, and whether the settings ask for it."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from ...server.config.settings import OFF, Settings
from .finding import Finding

_row = partial(Finding, "packages")


class Extra(NamedTuple):
    """An extra of milkweed's package: what it installs, and what for."""

    name: str
    packages: tuple[str, ...]
    purpose: str
    gpu_only: bool = False


EXTRAS = (
    Extra("dali", ("nvidia-dali-cuda130",), "decodes JPEGs on the GPU", gpu_only=True),
    Extra("nvml", ("nvidia-ml-py",), "GPU memory by owner, in the metrics", gpu_only=True),
    Extra("grpc", ("grpcio", "protobuf"), "Open Inference Protocol over gRPC (--grpc-port)"),
    Extra("otel", ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "traces (--otlp-endpoint)"),
    Extra("onnx", ("onnx", "onnxruntime", "onnxscript"), "`milkweed export --onnx`, and --backend other than torch"),
    Extra("torch", ("torch", "timm", "safetensors", "huggingface-hub"), "makes models, and serves their weights"),
    Extra("openvino", ("openvino",), "--backend openvino or auto, together with onnx"),
    Extra("train", ("matplotlib", "jinja2"), "`milkweed train`, reports of `compress`, and all plots"),
)


def package_version(name: str) -> str | None:
    """Return the version of an installed package, of two with one name the one that is imported; None without."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def package_findings(settings: Settings, *, with_gpu: bool) -> Iterator[Finding]:
    """Make a row for each extra."""
    asked = {
        "grpc": settings.grpc_port and f"grpc_port = {settings.grpc_port}",
        "otel": settings.otlp_endpoint != OFF and f"otlp_endpoint = {settings.otlp_endpoint}",
        "dali": settings.loader == "dali" and "loader = dali",
        "onnx": settings.backend in ("onnxruntime", "openvino") and f"backend = {settings.backend}",
        "openvino": settings.backend == "openvino" and "backend = openvino",
    }
    for extra in EXTRAS:
        yield _extra(extra, str(asked.get(extra.name) or ""), idle=extra.gpu_only and not with_gpu)


def _extra(extra: Extra, asked: str, *, idle: bool) -> Finding:
    versions = {name: package_version(name) for name in extra.packages}
    missing = ", ".join(name for name, number in versions.items() if number is None)
    if not missing:
        installed = ", ".join(f"{name} {number}" for name, number in versions.items())
        why_idle = "; there is no GPU to use it for" if idle else ""
        return _row(extra.name, "ok", f"{extra.purpose}; {installed}{why_idle}")
    fix = f"pip install 'milkweed[{extra.name}]'"
    if asked:
        return _row(extra.name, "broken", f"{asked} needs {missing}", fix)
    text = f"{extra.purpose}; not installed: {missing}"
    if idle:
        return _row(extra.name, "ok", f"{text}; without a GPU nothing is lost")
    return _row(extra.name, "missing", text, fix)
