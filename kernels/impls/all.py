"""Lists all impls."""

from .base import Impl
from .dense import DenseImpl
from .feature_major import FeatureMajorImpl
from .native import native_impls
from .quantized import quantized_impls
from .quarantine import with_quarantine
from .sdpa import sdpa_impls
from .torch_ops import EagerImpl
from .triton import triton_impls


def all_impls() -> list[Impl]:
    """Return every impl; one that cannot run on a device or a shape, or is quarantined, refuses it.

    Raises:
        ValueError: a kernel that does not exist is quarantined.
    """
    impls: list[Impl] = [
        *native_impls(),
        *triton_impls(),
        *quantized_impls(),
        FeatureMajorImpl(),
        DenseImpl(),
        *sdpa_impls(),
        EagerImpl(),
    ]
    return with_quarantine(impls)
