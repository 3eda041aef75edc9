"""Exports a bundle as an ONNX file of plain operations with metadata, and compares it with PyTorch first."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.token_blocks import token_plan_of
from ..bundle.bundle import load_bundle
from ..bundle.config import BundleConfig
from ..bundle.golden import golden_images
from ..bundle.labels import labels_document
from ..divergence import divergence
from ..errors import ExportError, quoted
from .file import OPSET, contents, data_file, describe, write_onnx
from .plain import plain_form
from .session import OnnxSession, runtime_version

LIMITS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest error of a logit by dtype, relative to the largest logit where that is above 1."""

KL_LIMITS = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.1}
"""The largest mean KL by dtype, nats, of a model that merges tokens: rounding may change which tokens merge.

DeiT-Tiny that merges 26 % of its tokens in each of eight blocks, 120 photographs: 0 in float32, 0.0048 in float16, and
0.010 with bfloat16 weights; with 22 % in four blocks 0, 0.00003 and 0.0006.
"""

NOISE_IMAGES = 2
"""Number of noise images that are checked beside the two golden images, in batches of one and of three."""


@dataclass(frozen=True)
class Verified:
    """Records how far ONNX Runtime's logits are from PyTorch's in float32.

    Args:
        error: the largest difference of a logit, divided by the largest logit where that is above 1. Of a model that
            merges tokens it is that of the median image.
        limit: the largest error allowed.
        images: number of images, in batches of one and of three.
        against, by: name and version of PyTorch and of ONNX Runtime.
        kl: mean KL(PyTorch || ONNX Runtime) of the answers, nats, of a model that merges tokens; its limit is one of
            KL_LIMITS.
    """

    error: float
    limit: float
    images: int
    against: str
    by: str
    kl: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `kl` is left out where there is none."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ExportReport:
    """What was written; `size_bytes` includes weights beside the file, `operators` counts the uses of each."""

    config: BundleConfig
    dtype: str
    opset: int
    size_bytes: int
    weight_bytes: int
    operators: Mapping[str, int]
    verified: Verified
    seconds: float


def export_bundle(bundle: Path, out: Path, *, dtype: str = "float32", overwrite: bool = False) -> ExportReport:
    """Write a bundle's model as an ONNX file, whole or not at all.

    Args:
        out: the file; weights that are too large for one file lie beside it in `<its name>.data`.
        dtype: one of LIMITS. float16 is the dtype of the computation, except for performer features. bfloat16 is the
            dtype of the weights alone: on a CPU, ONNX Runtime has no kernels for it, and before opset 22 ONNX has no
            convolution in it.
        overwrite: replace a file that is there already.

    Raises:
        BundleError: the bundle cannot be read.
        ExportError: the model cannot be exported, or the export computes something else; nothing is written.
        FileExistsError: `out` or the file of its weights exists.
        ImportError: onnx, onnxscript or onnxruntime are missing.
        OSError: `out` cannot be written.
        ValueError: no such dtype.
    """
    started = time.perf_counter()
    if dtype not in LIMITS:
        raise ValueError(f"dtype {quoted(dtype)}: must be one of {', '.join(LIMITS)}")
    _check_target(out, overwrite)
    model, config = load_bundle(bundle)
    with _folder_beside(out) as folder:
        file = folder / out.name
        try:
            verified = write_verified(model, file, int(config.preprocess["size"]), dtype)
        except ExportError as error:
            raise ExportError(f"bundle {bundle}: cannot be exported as ONNX: {error}") from error
        describe(file, _metadata(config, dtype, verified))
        operators, weight_bytes = contents(file)
        report = ExportReport(
            config,
            dtype,
            OPSET,
            sum(file.stat().st_size for file in folder.iterdir()),
            weight_bytes,
            operators,
            verified,
            time.perf_counter() - started,
        )
        _move(file, out)
    return report


def write_verified(model: nn.Module, file: Path, size: int, dtype: str = "float32") -> Verified:
    """Write a model that `create_model` built, and compare the file with it; the model is converted in place.

    Args:
        size: side of its input, px.

    Raises:
        ExportError: the model cannot be exported, or ONNX Runtime computes something else.
        ImportError: a package is missing.
    """
    noise = torch.randn(NOISE_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    images = torch.cat([torch.from_numpy(golden_images(size)), noise])
    batches = images.split([1, len(images) - 1])
    with torch.inference_mode():
        expected = [model(batch).float() for batch in batches]
    merges = token_plan_of(model).merging is not None
    plain = plain_form(model, getattr(torch, dtype))
    write_onnx(plain, file, images[:2], bfloat16_weights=dtype == "bfloat16")
    session = OnnxSession(file)
    verified = _verified(torch.cat(expected), torch.cat([session(batch) for batch in batches]), dtype, merges)
    if not verified.error <= verified.limit:  # NaN is refused too
        raise ExportError(
            f"ONNX Runtime's logits are off by {verified.error:.2g} of the largest, more than the {verified.limit:g} "
            f"of {dtype}"
        )
    if verified.kl is not None and not verified.kl <= KL_LIMITS[dtype]:
        raise ExportError(
            f"ONNX Runtime answers with a KL of {verified.kl:.2g}, more than the {KL_LIMITS[dtype]:g} of {dtype}"
        )
    return verified


def _verified(expected: Tensor, outputs: Tensor, dtype: str, merges: bool) -> Verified:
    """Compare logits (images, classes)."""
    errors = (outputs - expected).abs().amax(dim=1) / expected.abs().max().clamp(min=1)
    error = float(errors.median() if merges else errors.max())
    kl = divergence(expected.log_softmax(-1), outputs.log_softmax(-1)).kl if merges else None
    return Verified(
        float(f"{error:.3g}"),
        LIMITS[dtype],
        len(errors),
        f"torch {version('torch')}",
        f"onnxruntime {runtime_version()}",
        None if kl is None else float(f"{max(kl, 0.0):.3g}"),
    )


def _check_target(out: Path, overwrite: bool) -> None:
    for path in (out, data_file(out)):
        if path.is_dir():
            raise FileExistsError(f"{path}: is a folder")
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path}: exists already; --force replaces it")


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`, on the same file system, so that files can be moved in place.

    Raises:
        OSError: for every OSError inside, such as a full disk; it names `out`.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            yield Path(folder)
    except OSError as error:
        raise OSError(f"{out}: cannot be written: {error.strerror or error}") from error


def _metadata(config: BundleConfig, dtype: str, verified: Verified) -> dict[str, str]:
    """The metadata of a file: strings as they are, all other values as JSON."""
    values: dict[str, Any] = {
        **config.preprocess,
        "labels": labels_document(config.labels),
        "arch": config.arch,
        "problem_type": config.problem_type,
        "bundle_version": config.version,
        "milkweed_version": version("milkweed"),
        "dtype": dtype,
        "verified": verified.to_dict(),
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _move(file: Path, out: Path) -> None:
    """Put a finished file in place, its separate weights first; separate weights of a replaced file are removed."""
    weights = data_file(file)
    if weights.exists():
        os.replace(weights, data_file(out))
    else:
        data_file(out).unlink(missing_ok=True)
    os.replace(file, out)
