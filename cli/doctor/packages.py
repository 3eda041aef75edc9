"""Checks the optional packages: what each adds, whether it is installed, and whether the settings ask for it."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from ...kernels.installation import install_command
from ...server.config.settings import OFF, Settings
from .finding import Finding, row

_row = partial(row, "packages")


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
    Extra("bulk", ("fsspec", "pyarrow"), "`classify` and `embed` read object stores and tables"),
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
    # The setting that needs an extra, and whether its value does.
    asked = {
        "grpc": ("grpc_port", settings.grpc_port != 0),
        "otel": ("otlp_endpoint", settings.otlp_endpoint != OFF),
        "dali": ("loader", settings.loader == "dali"),
        "onnx": ("backend", settings.backend in ("onnxruntime", "openvino")),
        "openvino": ("backend", settings.backend == "openvino"),
    }
    for extra in EXTRAS:
        versions = {name: package_version(name) for name in extra.packages}
        missing = ", ".join(name for name, number in versions.items() if number is None)
        idle, fix = extra.gpu_only and not with_gpu, install_command(extra.name)
        setting, needed = asked.get(extra.name, ("", False))
        if not missing:
            installed = ", ".join(f"{name} {number}" for name, number in versions.items())
            yield _row(extra.name, f"{extra.purpose}; {installed}{'; there is no GPU to use it for' if idle else ''}")
        elif needed:
            yield _row(extra.name, "", f"{setting} = {getattr(settings, setting)} needs {missing}", fix, "broken")
        else:
            text = f"{extra.purpose}; not installed: {missing}"
            yield _row(extra.name, f"{text}; without a GPU nothing is lost", None if idle else text, fix, "missing")
