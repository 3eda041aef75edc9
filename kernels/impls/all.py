"""Lists all impls."""

from .base import Impl
from .dense import DenseImpl
from .feature_major import FeatureMajorImpl
from .native import native_impls
from .sdpa import sdpa_impls
from .torch_ops import BatchedImpl, EagerImpl
from .triton import triton_impls


def all_impls() -> list[Impl]:
    """Return every impl; one that cannot run on a device or a shape refuses it."""
    return [
        *native_impls(),
        *triton_impls(),
        FeatureMajorImpl(),
        DenseImpl(),
        BatchedImpl(),
        *sdpa_impls(),
        EagerImpl(),
    ]
