"""The key of a measurement in the cache: shapes, impls and versions, everything that could change times."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from ..chain_ir import Problem
from ..impls.base import Impl
from .chain import Chain


def tuning_key(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> str:
    """Return a text that is equal for problems with the same best plan, as far as can be told without measuring."""
    parts = [chain.describe(), problem.describe(), f"engines={_digest(impls)}", *_versions()]
    if problem.device.type == "cpu":
        parts.append(f"threads={torch.get_num_threads()}")
    return ";".join(parts)


def _digest(impls: Sequence[Impl]) -> str:
    """Hash the names of the impls that took part, and the builds of those that are built separately."""
    names = (f"{impl.name}={getattr(impl, 'build_id', '')}" for impl in impls)
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


@cache
def _versions() -> tuple[str, ...]:
    """Return the versions of the packages that have kernels."""
    return (
        f"milkweed={_version('milkweed')}",
        f"torch={torch.__version__}",
        f"cuda={torch.version.cuda}",
        f"triton={_version('triton')}",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
