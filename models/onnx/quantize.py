"""Makes the W8A8 form of a model's graph from a few images: post-training, by NNCF.

Weights become int8 with a scale a channel, and the inputs of products uint8 or int8 with a scale a tensor. All else
stays float32, which OpenVINO may compute in bfloat16. The file is ONNX with QuantizeLinear and DequantizeLinear, which
OpenVINO and ONNX Runtime both compute in int8.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ...kernels.installation import install_command
from ..bundle.graph import OnnxGraph
from ..bundle.graph_record import GraphRecord
from ..bundle.onnx_header import read_header
from ..errors import ExportError

MIN_IMAGES = 32
SECONDS = 3600.0
"""Time that a quantisation may take: DeiT-Tiny's takes 15 seconds, and it grows with the model and the images."""

INT8_PRODUCTS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "i8mm", "dotprod")
"""CPU features that multiply int8 faster than float32, the fastest first."""


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings:
    """How a graph is quantised.

    Args:
        smooth_quant: alpha of SmoothQuant, 0 to 1, which moves outliers of activations into the weights; None is
            without. NNCF's own default is 0.95, the largest loss that int8 had here (KL .018; .006 with 0.5, .004
            without: DeiT-Tiny).
        symmetric: the levels of activations lie evenly around zero, so that runtimes need no zero points. On CPUs with
            AMX, OpenVINO computes linear layers faster so, and convolutions in int8 at all.
        keep_float: layers that are not quantised, by name or pattern (`blocks.0`, `*.fc2`); modules include theirs.
        images: so many of the images are used at most, evenly spaced.
    """

    smooth_quant: float | None = None
    symmetric: bool = False
    keep_float: tuple[str, ...] = ()
    images: int = 128

    def __post_init__(self) -> None:
        if self.smooth_quant is not None and not 0 <= self.smooth_quant <= 1:
            raise ValueError(f"smooth_quant {self.smooth_quant:g}: must be between 0 and 1, or None")
        if self.images < MIN_IMAGES:
            raise ValueError(f"{self.images} images: quantisation needs at least {MIN_IMAGES}")


def quantized_graph(source: Path, images: Tensor, settings: QuantizeSettings | None = None) -> OnnxGraph:
    """Quantise an exported graph in a process of its own; the same graph and images give the same bytes.

    Args:
        source: a file that `write_onnx` wrote.
        images: normalised images (n, 3, H, W), as the graph takes them.

    Raises:
        ExportError: the graph cannot be quantised.
        ImportError: a package is missing.
        ValueError: too few images, or images that teach nothing.
    """
    settings = settings or QuantizeSettings()
    _check_packages()
    [graph_input] = read_header(source.read_bytes()).inputs
    images = _checked(images, graph_input.shape[1:])
    chosen = images[torch.linspace(0, len(images) - 1, min(len(images), settings.images)).round().long()]
    with tempfile.TemporaryDirectory(prefix="milkweed-") as name:
        folder = Path(name)
        numpy.save(folder / "images.npy", chosen.numpy())
        facts = _run(source, folder / "images.npy", folder / "graph.onnx", settings)
        data = (folder / "graph.onnx").read_bytes()
    said = {
        "method": "NNCF",
        "smooth_quant": settings.smooth_quant,
        "symmetric": settings.symmetric,
        "keep_float": list(settings.keep_float),
        "images": len(chosen),
        "versions": facts.pop("versions"),
    }
    backends = tuple(facts.pop("backends"))
    return OnnxGraph(data, GraphRecord(precision="int8", backends=backends, quantisation=said, **facts))


def int8_instructions() -> str | None:
    """The CPU's feature for products of int8, such as `avx512_vnni`; None where it has none.

    int8 is computed there as well, half again as slowly in OpenVINO (17.8 instead of 12.0 ms for DeiT-Tiny), and
    rounded in other places (KL .0066 instead of .0046).
    """
    features = torch.cpu.get_capabilities()
    return next((name for name in INT8_PRODUCTS if features.get(name)), None)


def _check_packages() -> None:
    missing = [name for name in ("nncf", "openvino", "onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ImportError(f"quantisation needs {', '.join(missing)}: {install_command('onnx,quantize')}")


def _checked(images: Tensor, shape: tuple[int | None, ...]) -> Tensor:
    """The images as float32 on the CPU, if a graph can learn its ranges from them."""
    if tuple(images.shape[1:]) != shape:
        raise ValueError(f"images of shape {tuple(images.shape[1:])}: the graph takes {shape}")
    if len(images) < MIN_IMAGES:
        raise ValueError(f"{len(images)} images: quantisation needs at least {MIN_IMAGES}")
    images = images.detach().float().cpu()
    if not bool(images.isfinite().all()):
        raise ValueError("images hold numbers that are not finite")
    textured = images[images.flatten(2).amax(-1).ne(images.flatten(2).amin(-1)).any(-1)]
    different = len({image.numpy().tobytes() for image in textured})
    if different < MIN_IMAGES:
        raise ValueError(
            f"of {len(images)} images {different} differ from each other and are not of one colour: "
            f"quantisation needs at least {MIN_IMAGES}"
        )
    return images


def _run(source: Path, images: Path, out: Path, settings: QuantizeSettings) -> dict[str, Any]:
    said = json.dumps({name: value for name, value in asdict(settings).items() if name != "images"})
    module = "milkweed.models.onnx.quantize_process"
    command = [sys.executable, "-P", "-m", module, str(source), str(images), str(out), said]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ExportError(f"the graph was not quantised within {SECONDS:.0f} s") from None
    if done.returncode:
        raise ExportError((done.stderr.strip() or f"quantisation ended with code {done.returncode}").splitlines()[-1])
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts
