"""Sees to it that the kernel library is there: builds it for this device where nvcc is, else says why it is not."""

import sys

import torch

from ...kernels.native import build
from ...kernels.native.library import native_status


def ready_library(device: torch.device, *, build_it: bool) -> str:
    """Build for this device alone where asked to, load, and one line about the outcome."""
    if device.type != "cuda":
        return "dry run: the operators' CPU implementations"
    if build_it and build.main(["--arch", "native"]) != 0:
        print("the kernel library was not built: the rows that need it will say so", file=sys.stderr)
    return str(native_status(device))
