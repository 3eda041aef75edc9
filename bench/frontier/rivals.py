"""The rivals: what quantisers do by default, and methods of papers, written from the papers with the parts we have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from ...compress.data import Baseline, ImageSet
from ...compress.widths.narrow import narrow_model, widths_for
from ...inference.backend import Backend
from ...models.architectures.token_blocks import apply_token_plan
from ...models.hooks import hooked
from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import linear_layer, select_linears
from ...models.layers.token_plan import TokenMerging, TokenPlan
from ...models.onnx.file import INPUT
from ...models.onnx.quantize import QuantizeSettings, quantized_graph
from ...models.projection.layer_fit import FitRequest, fit_layers
from ...models.projection.replacement import replace_layer
from ...models.projection.statistics import Moments

NNCF_ALPHA, NNCF_IMAGES = 0.95, 300
"""NNCF's defaults for a transformer: SmoothQuant's alpha, and the images that calibrate at most."""

CALIBRATION_BATCH = 8


@dataclass(frozen=True)
class Rival:
    """A way to make a dense model smaller or faster.

    Args:
        source: the paper or the tool.
        backends: those that it is measured in.
        all_types: measured in every number type that a backend computes in, not in its fastest alone.
        model: makes the model that is exported, or computed by torch, from the photographs that fit.
        quantise: makes a graph in a file of the exported one.
        finish: changes the model of the number type that torch computes it in. torch.compile compiles what it gives,
            as its makers advise; other models are recorded, as they are served.
    """

    name: str
    source: str
    backends: tuple[Backend, ...] = ("openvino",)
    all_types: bool = False
    model: Callable[[Baseline], nn.Module] = Baseline.fresh_model
    quantise: Callable[[Path, ImageSet, Path], None] | None = None
    finish: Callable[[nn.Module], nn.Module] | None = None


@dataclass(frozen=True)
class PaperMerging(TokenMerging):
    """Token merging as its paper has it: r tokens in every block, the last one too, and none is protected."""

    start: int = 0
    every: int = 1
    r: int = 8

    def blocks(self, depth: int) -> range:
        return range(depth)

    def count(self, patches: int) -> int:
        return max(0, min(self.r, (patches - 1) // 2))


def merge_tokens(baseline: Baseline, r: int) -> nn.Module:
    """Merge r tokens in every block."""
    return apply_token_plan(baseline.fresh_model(), TokenPlan(PaperMerging(r=r)))


def whitened_svd(baseline: Baseline, share: float) -> nn.Module:
    """Make every linear layer of the blocks low rank, with this share of its weights.

    The error is least on the layer's own inputs in the dense model: a singular value decomposition of W L, where L L^T
    is their second moment about zero.
    """
    model, moments = baseline.fresh_model(), dict[str, Moments]()
    names = select_linears(model, ("mlp", "qkv", "proj"))
    with (
        torch.inference_mode(),
        hooked(model, names, lambda name, seen, _: moments.setdefault(name, Moments()).add(seen[0])),
    ):
        for batch in baseline.calibration.batches:
            model(batch)
    requests = {}
    for name in names:
        linear = linear_layer(model, name)
        rows, columns = linear.weight.shape
        rank = max(1, int(share * rows * columns / (rows + columns)))
        spec = LayerSpec("lowrank", columns, rows, rank=rank, bias=linear.bias is not None)
        requests[name] = FitRequest.of(linear, spec, moments[name].statistics(name).uncentred())
    for name, fit in fit_layers(requests).items():
        replace_layer(model, name, fit)
    return model


def remove_units(baseline: Baseline, share: float) -> nn.Module:
    """Keep this share of the hidden units of every MLP, and refit its second layer in closed form."""
    model = baseline.fresh_model()
    return narrow_model(model, widths_for(model, mlp=share), baseline.calibration.batches)


def nncf_default(source: Path, images: ImageSet, out: Path) -> None:
    """Quantise by NNCF with its defaults."""
    settings = QuantizeSettings(smooth_quant=NNCF_ALPHA, images=NNCF_IMAGES)
    out.write_bytes(quantized_graph(source, images.pixels, settings).data)


def ort_static(source: Path, images: ImageSet, out: Path) -> None:
    """Quantise weights and activations by ONNX Runtime."""
    from onnxruntime.quantization import quantize_static

    quantize_static(_prepared(source), str(out), _Reader(images), per_channel=True)


def ort_dynamic(source: Path, _: ImageSet, out: Path) -> None:
    """Quantise weights by ONNX Runtime, and activations by what each batch holds."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(_prepared(source), str(out), per_channel=True)


def _prepared(source: Path) -> str:
    """A graph beside this one, prepared as ONNX Runtime's documents ask for before a quantisation."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = str(source.with_suffix(".prepared"))
    quant_pre_process(str(source), prepared)
    return prepared


class _Reader:
    """Photographs as ONNX Runtime's calibration reads them."""

    def __init__(self, images: ImageSet) -> None:
        self._batches: Iterator[torch.Tensor] = iter(images.pixels.split(CALIBRATION_BATCH))

    def get_next(self) -> dict[str, object] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch.numpy()}


def torchao_dynamic(model: nn.Module) -> nn.Module:
    """Quantise weights by torchao, and activations by what each token holds.

    Raises:
        ImportError: torchao is not installed.
    """
    try:
        torchao = import_module("torchao.quantization")
    except ImportError as error:
        raise ImportError("torchao is not installed: pip install --no-deps torchao") from error
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())
    return model


DENSE = Rival("dense", "", ("openvino", "onnxruntime", "torch"), all_types=True)
TOME, SVD_LLM, CORP = "arXiv 2210.09461", "arXiv 2403.07378", "arXiv 2602.05243"
RIVALS = (
    Rival("NNCF default int8", "NNCF", all_types=True, quantise=nncf_default),
    Rival("ONNX Runtime static int8", "ONNX Runtime", ("onnxruntime",), quantise=ort_static),
    Rival("ONNX Runtime dynamic int8", "ONNX Runtime", ("onnxruntime",), quantise=ort_dynamic),
    *(Rival(f"ToMe r {r}", TOME, ("openvino", "torch"), model=partial(merge_tokens, r=r)) for r in (8, 13)),
    *(Rival(f"SVD-LLM {100 * s:g} %", SVD_LLM, model=partial(whitened_svd, share=s)) for s in (0.8, 0.5)),
    *(Rival(f"CORP {100 * s:g} % of units", CORP, model=partial(remove_units, share=s)) for s in (0.75, 0.5)),
    Rival("torchao dynamic int8", "torchao", ("torch",), finish=torchao_dynamic),
)
