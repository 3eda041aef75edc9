"""All impls."""

from .base import Impl
from .batched import BatchedImpl
from .dense import DenseImpl
from .feature_major import FeatureMajorImpl
from .native import native_impls
from .sdpa import sdpa_impls
from .torch_ops import EagerImpl
from .triton import triton_impls


def all_impls() -> list[Impl]:
    """Every impl; what cannot run on a device or a shape says so when asked."""
    return [
        *native_impls(),
        *triton_impls(),
        FeatureMajorImpl(),
        DenseImpl(),
        BatchedImpl(),
        *sdpa_impls(),
        EagerImpl(),
    ]
