"""The key of a measurement in the cache: shapes, impls and the sources of their kernels.

Versions of PyTorch, CUDA and Triton are left out, and so are the compiler and the architectures of the library: the
plans that the package brings are measured on one machine and must be found on another. Values cannot suffer, since a
plan from the cache is verified when it is loaded. Times may be stale after an upgrade: `MILKWEED_TUNING=force` measures
again. The files that the tuner writes have the same key, since a second one with versions would only save that.
"""

import hashlib
from collections.abc import Sequence

import torch

from ..chain_ir import Problem
from ..impls.base import Impl
from .chain import Chain


def tuning_key(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> str:
    """Return a text that is equal for problems with the same best plan, as far as can be told without measuring."""
    parts = [chain.describe(), problem.describe(), f"engines={_digest(impls)}"]
    if problem.device.type == "cpu":
        parts.append(f"threads={torch.get_num_threads()}")
    return ";".join(parts)


def _digest(impls: Sequence[Impl]) -> str:
    """Hash the names of the impls that took part, and the sources of those that have kernels."""
    names = (f"{impl.name}={getattr(impl, 'build_id', '')}" for impl in impls)
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]
