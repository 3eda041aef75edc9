"""Monarch layers and MLPs on Triton: two launches a layer, the permutations in the order of weights and of stores.

They complement the CUDA library: they use the wide tensor core instructions (wgmma, tcgen05) for products of large
blocks, and take any shape that the library refuses.

The operators are opaque to the compiler (`custom_op`, not `triton_op`): a launch picks its tile from the device and
makes tensor descriptors on the host, which cannot be traced, and inductor would have nothing to fuse.
"""

import os
import shutil
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ..blocked import DTYPES, Activation, BlockedMonarch, blocked_reference
from ..shapes import MonarchShape
from .driver_module import takes_driver_module
from .inner import ROWS, InnerShape
from .launch import linear_launches, mlp_launches
from .layout import check_layer, sorted_mlp_reference
from .tiles import VARIANTS, device_properties

SOURCES = Path(__file__).parent
"""The folder of these kernels' sources."""

FIRST_TRITON, LAST_GLUON = "3.6", "3.9"
"""The versions of Triton with which these kernels are compiled and checked, the last one for those in Gluon."""


def triton_refusal(shape: MonarchShape, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why Triton's kernels cannot run a layer there; None if they can. Launches nothing."""
    refusal = unusable(dtype, device)
    if refusal is None and min(shape.K, shape.q, shape.p, shape.J, shape.s) < 1:
        return f"nothing to compute: {shape}"
    return refusal


def unusable(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why none of Triton's kernels can run there; None if they can. Launches nothing."""
    if device.type != "cuda":
        return f"device is {device.type}: these Triton kernels are CUDA's"
    if dtype not in DTYPES:
        return f"dtype {dtype}: bfloat16 or float16 is needed"
    if torch.version.hip is not None:
        return "these Triton kernels are CUDA's, this PyTorch is of ROCm"
    missing = missing_for_triton()
    if missing is not None:
        return missing
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return "compute capability {}.{}: 8.0 or later is needed".format(*capability)
    return None


def inner_refusal(
    shape: InnerShape, tile: int, rows: int, dtype: torch.dtype, device: torch.device, *, on_cpu: bool
) -> str | None:
    """Return why the inner half of an MLP cannot run there; None if it can, or a CPU stands in. Launches nothing."""
    refusal = shape.refusal(tile)
    if refusal or (on_cpu and device.type == "cpu"):
        return refusal
    refusal = unusable(dtype, device) or missing_for_gluon()
    return refusal or shape.device_refusal(tile, rows, dtype, device_properties(device))


def missing_for_triton() -> str | None:
    """Return what triton lacks here, or None: it compiles a C module before its first launch, or has it already."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if _release(version("triton")) < _release(FIRST_TRITON):
        return f"triton {version('triton')}: {FIRST_TRITON} or later is needed"
    if takes_driver_module():
        return None
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler: triton needs gcc, clang or $CC"
    # Debian's own Python names a folder without headers first; triton passes over it in this way.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    if not (Path(sysconfig.get_paths(scheme)["include"]) / "Python.h").is_file():
        return "no Python.h: triton needs the headers of this Python"
    return None


def missing_for_gluon() -> str | None:
    """Return why the kernels in Gluon cannot run here, or None: it is experimental, and changes between versions."""
    missing = missing_for_triton()
    if missing is None and _release(version("triton")) > _release(LAST_GLUON):
        return f"triton {version('triton')}: the kernels in Gluon are checked with {FIRST_TRITON} to {LAST_GLUON}"
    return missing


def _release(version: str) -> list[int]:
    return list(map(int, version.split(".")[:2]))


def triton_linear(
    x: Tensor, layer: BlockedMonarch, residual: Tensor | None = None, act: int = Activation.NONE, tile: int = 0
) -> Tensor:
    """Compute act(M x + bias) + residual in two launches.

    Args:
        x: (M, in_features), contiguous, the layer's dtype.
        layer: a layer from `sort_layer`.
        residual: (M, out_features), contiguous, or None.
        act: a `blocked.Activation`.
        tile: index of `tiles.VARIANTS`; a CPU, which runs plain PyTorch, ignores it.

    Raises:
        ValueError: the tensors do not fit; nothing was launched.
        ModuleNotFoundError: (CUDA) triton is not installed.
    """
    return torch.ops.milkweed.triton_monarch_linear(
        x, layer.w1, layer.w2, layer.bias, residual, layer.p, layer.out_features, act, tile
    )


def triton_mlp(
    x: Tensor,
    fc1: BlockedMonarch,
    fc2: BlockedMonarch,
    residual: Tensor | None = None,
    tile: int = 0,
    inner: int | None = None,
) -> Tensor:
    """Compute fc2(gelu(fc1(x))) + residual in four launches for layers from `sort_mlp`; see `triton_linear`.

    With `inner`, an index of `inner.ROWS`, it is three launches, for what `InnerShape` does not refuse.
    """
    return torch.ops.milkweed.triton_monarch_mlp(
        x, fc1.w1, fc1.w2, fc1.bias, fc2.w1, fc2.w2, fc2.bias, residual, fc1.p, fc2.out_features, tile, inner
    )


@torch.library.custom_op("milkweed::triton_monarch_linear", mutates_args=())
def _linear(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    p: int,
    out_features: int,
    act: int,
    tile: int,
) -> Tensor:
    layer = BlockedMonarch(w1, w2, bias, p, out_features)
    _check(x, (layer,), residual, tile)
    if x.device.type == "cpu":
        return blocked_reference(x, layer, act, residual)
    y = x.new_empty(len(x), out_features)
    for launch in linear_launches(x, layer, residual, act, y, VARIANTS[tile], device_properties(x.device)):
        launch.run()
    return y


@torch.library.custom_op("milkweed::triton_monarch_mlp", mutates_args=())
def _mlp(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    bias1: Tensor | None,
    w3: Tensor,
    w4: Tensor,
    bias2: Tensor | None,
    residual: Tensor | None,
    p: int,
    out_features: int,
    tile: int,
    inner: int | None,
) -> Tensor:
    fc1 = BlockedMonarch(w1, w2, bias1, p, w2.shape[0] * w2.shape[1])
    fc2 = BlockedMonarch(w3, w4, bias2, fc1.out_features // max(1, len(w3)), out_features)
    _check(x, (fc1, fc2), residual, tile)
    if inner is not None:
        most = ROWS[-1]  # few rows are no reason
        if refusal := inner_refusal(InnerShape.of(fc1, fc2), inner, most, x.dtype, x.device, on_cpu=True):
            raise ValueError(refusal)
    if x.device.type == "cpu":
        return sorted_mlp_reference(x, fc1, fc2, residual)
    y = x.new_empty(len(x), out_features)
    for launch in mlp_launches(x, fc1, fc2, residual, y, VARIANTS[tile], device_properties(x.device), inner):
        launch.run()
    return y


_linear.register_fake(lambda x, *arguments: x.new_empty(x.shape[0], arguments[-3]))
_mlp.register_fake(lambda x, *arguments: x.new_empty(x.shape[0], arguments[-3]))


def _check(x: Tensor, layers: tuple[BlockedMonarch, ...], residual: Tensor | None, tile: int) -> None:
    """Check the tensors, since the kernels would read wrong ones without an error.

    Raises:
        ValueError: a tensor does not fit; the message names it.
    """
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"x is on {x.device}: these Triton kernels are CUDA's")
    for layer in layers:
        check_layer(layer)
    first, last = layers[0], layers[-1]
    if x.dtype not in DTYPES or x.dim() != 2 or not 0 < x.shape[1] <= first.K * first.p:
        raise ValueError(f"x {tuple(x.shape)} of {x.dtype}: (M, n) with n <= {first.K * first.p} is needed")
    if residual is not None and residual.shape != (len(x), last.out_features):
        raise ValueError(f"residual {tuple(residual.shape)}: {(len(x), last.out_features)} is needed")
    if not 0 <= tile < len(VARIANTS):
        raise ValueError(f"tile {tile}: there are {len(VARIANTS)}")
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if any(bias.dtype != torch.float32 for bias in biases):
        raise ValueError("bias: float32 is needed")
    others = [x, *(w for layer in layers for w in (layer.w1, layer.w2)), *([] if residual is None else [residual])]
    if any(tensor.dtype != x.dtype for tensor in others):
        raise ValueError(f"x is {x.dtype}, other tensors are {sorted({str(tensor.dtype) for tensor in others})}")
    if any(tensor.device != x.device or not tensor.is_contiguous() for tensor in [*others, *biases]):
        raise ValueError("tensors on one device and contiguous are needed")
