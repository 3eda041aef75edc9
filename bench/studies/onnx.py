"""ONNX Runtime and OpenVINO against torch on a CPU, on one thread.

    python -m milkweed.bench.studies.onnx [BUNDLE ...]
    python -m milkweed.bench.studies.onnx --families [ARCH ...]

The first times forwards: each bundle, two architectures of random weights, and what the MLPs of those that are dense
are as Monarch of four blocks, by each backend in each number type that it computes in, in turns in one run; medians.
The second exports the smallest model of each family, all its replaceable layers but the classifier Monarch of four
blocks, and compares the logits of ONNX Runtime with torch's: batches of 1, 3 and 8 random images, differences divided
by the largest logit where that is above 1.
"""

import argparse
import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...models import create_model, default_preprocess, load_bundle, select_linears
from ...models.accounting import parameter_count
from ...models.architectures.meta_init import on_meta
from ...models.architectures.registry import CUSTOM_VITAE, classifier_layers, own_architectures
from ...models.architectures.summary import linears_outside
from ...models.architectures.timm_models import recorded_timm_models
from ...models.compress import CompressRequest, compress_model
from ...models.errors import ExportError
from ...models.layers.layer_spec import layer_specs_for, replace_linears
from ...models.onnx.export import LIMITS, write_verified
from ...models.onnx.openvino_session import OpenVinoSession
from ...models.onnx.session import OnnxSession, runtime_version
from ...models.serving.prepare import prepare_for_inference
from ...models.serving.torchscript import torchscript_forward
from ..machine import about, torch_threads
from ..turns import in_turns, medians

ARCHS = ("vit_small_patch16_224", "vitae_basic_tiny")
BATCHES, NBLOCKS = (1, 3, 8), 4
PUBLISHED = ("vision_transformer", "deit", "mlp_mixer")  # timm's modules of which there are published Monarch models
MOST_MACS = 30e9
"""Multiply-accumulates of one image: a family without a smaller model is passed over, since it would take minutes."""

Calls = dict[str, Callable[[Tensor], Tensor]]  # what computes logits, by engine and form: `torch dense`


def main() -> None:
    """Print a row for each comparison, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="BUNDLE|ARCH", help="bundles; with --families architectures")
    parser.add_argument("--families", action="store_true", help="compare logits of every family, time nothing")
    parser.add_argument("--rounds", type=int, default=9, help="in which each side computes once")
    parser.add_argument("--out", type=Path, help="default: bench/results/onnx.json, or onnx_families.json")
    options = parser.parse_args()
    name = "onnx_families" if options.families else "onnx"
    out = options.out or Path(f"bench/results/{name}.json")
    out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    before, rows = os.getloadavg(), list[dict[str, Any]]()
    with torch_threads(1):
        for row in families(options.names) if options.families else timed(options.names, options.rounds):
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    runtimes = {name: runtime_version(name) for name in ("onnxruntime", "openvino")}
    document = {**about(name, before), **runtimes, "rows": rows}
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {out}")


def timed(bundles: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """CPU and wall milliseconds of forwards by side; `cpu_ratio` to the first, above 1 is faster."""
    for name, forms, size in [*map(_loaded, map(Path, bundles)), *map(_random, ARCHS)]:
        for images in (1, 8):
            x = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(0))
            sides = _sides(forms, size, images)
            with torch.inference_mode():
                check_equal(sides, x)
                spent = in_turns({side: partial(call, x) for side, call in sides.items()}, rounds)
            ms = {side: medians(found) for side, found in spent.items()}
            cpu, reference = {side: each[1] for side, each in ms.items()}, next(iter(ms.values()))[1]
            row = {"model": name, "images": images, "rounds": rounds, "cpu_ms": cpu}
            row["wall_ms"] = {side: each[0] for side, each in ms.items()}
            yield {**row, "cpu_ratio": {side: round(reference / each, 2) for side, each in cpu.items()}}


def check_equal(sides: Calls, x: Tensor) -> None:
    """Raises RuntimeError where a side computes something else than torch in float32."""
    for side, call in sides.items():
        _, *dtype, form = side.split(" ")
        if _error(call(x), sides[f"torch {form}"](x)) > LIMITS["".join(dtype) or "float32"]:
            raise RuntimeError(f"{side} computes something else than torch")


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def _sides(forms: Mapping[str, nn.Module], size: int, images: int) -> Calls:
    sides, shape = Calls(), (images, 3, size, size)
    for form, model in forms.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            write_verified(copy.deepcopy(model), file, size)
            sides[f"torch {form}"] = _torch(model, torch.float32, shape)
            sides[f"torch bfloat16 {form}"] = _torch(model, torch.bfloat16, shape)
            sides[f"onnxruntime {form}"] = OnnxSession(file, batch=images)
            sides[f"openvino {form}"] = OpenVinoSession(file, batch=images)
            sides[f"openvino bfloat16 {form}"] = OpenVinoSession(file, batch=images, dtype="bfloat16")
    return sides


def _torch(model: nn.Module, dtype: torch.dtype, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A model as it is served."""
    forward = torchscript_forward(prepare_for_inference(copy.deepcopy(model), dtype=dtype), shape, dtype)
    return lambda x: forward(x.to(dtype)).float()


def _loaded(bundle: Path) -> tuple[str, dict[str, nn.Module], int]:
    """A bundle, and its nearest Monarch one where it is dense: name, model by form, px."""
    given, config = load_bundle(bundle)
    name, size = f"{bundle.name} ({config.arch} {config.version})", int(config.preprocess["size"])
    if config.structure:
        return name, {"compressed": given}, size
    with tempfile.TemporaryDirectory() as folder:
        compress_model(bundle, Path(folder) / "monarch", CompressRequest())
        monarch, _ = load_bundle(Path(folder) / "monarch")
    return name, {"dense": given, "monarch": monarch}, size


def _random(arch: str) -> tuple[str, dict[str, nn.Module], int]:
    """An architecture with random weights, dense and with Monarch MLPs: name, model by form, px."""
    torch.manual_seed(0)
    dense = create_model(arch)
    monarch = create_model(arch, layer_specs=layer_specs_for(dense, select_linears(dense, ["mlp"])))
    forms = {"dense": dense.requires_grad_(False), "monarch": monarch.requires_grad_(False)}
    return arch, forms, int(default_preprocess(arch)["size"])


def families(archs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The largest error of each model, or why there is none."""
    for arch, dtype in [(arch, dtype) for arch in archs for dtype in LIMITS] or smallest():
        size = int(default_preprocess(arch)["size"])
        model, layers = _all_monarch(arch)
        row: dict[str, Any] = {"arch": arch, "image_px": size, "monarch_layers": layers, "dtype": dtype}
        x = torch.randn(max(BATCHES), 3, size, size)
        with tempfile.TemporaryDirectory() as work:
            try:
                file = Path(work) / "model.onnx"
                write_verified(copy.deepcopy(model), file, size, dtype)
                row["error"] = _largest_error(model, OnnxSession(file), x)
            except ExportError as error:
                row["refused"] = str(error)
        yield row


@torch.inference_mode()
def _largest_error(model: nn.Module, session: OnnxSession, x: Tensor) -> float:
    if float(model(x).std(0).max()) < 1e-3:
        raise RuntimeError("the model says the same of all images: nothing is compared")
    return float(f"{max(_error(session(x[:n]), model(x[:n])) for n in BATCHES):.3g}")


def smallest() -> Iterator[tuple[str, str]]:
    """The smallest model of each class of ours, by parameters, and of each module of timm's, by MACs.

    In all number types for ours, ViT, DeiT and Mixer, in float32 for the others.
    """
    own: dict[str, tuple[int, str]] = {}
    for arch in set(own_architectures()) - {CUSTOM_VITAE}:
        with on_meta():
            model = create_model(arch)
        kind = type(model).__name__
        own[kind] = min(own.get(kind, (1 << 62, "")), (parameter_count(model).total, arch))
    timm: dict[str, tuple[int, str]] = {}
    for arch, record in recorded_timm_models().items():
        if record.macs <= MOST_MACS:
            timm[record.family] = min(timm.get(record.family, (1 << 62, "")), (record.macs, arch))
    for family, (_, arch) in [*sorted(own.items()), *sorted(timm.items())]:
        yield from ((arch, dtype) for dtype in (LIMITS if family in own or family in PUBLISHED else ["float32"]))


def _all_monarch(arch: str) -> tuple[nn.Module, int]:
    """Random weights, none left at zero: a head of zeros says the same of all images. And the count of its layers."""
    torch.manual_seed(0)
    model = create_model(arch)
    linears = linears_outside(model, classifier_layers(arch))
    names = [name for name, linear in linears.items() if min(linear.weight.shape) >= NBLOCKS]
    replace_linears(model, layer_specs_for(model, names, nblocks=NBLOCKS))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval().requires_grad_(False), len(names)


if __name__ == "__main__":
    main()
