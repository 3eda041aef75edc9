"""All engines."""

from .base import Engine
from .batched import BatchedEngine
from .dense import DenseEngine
from .feature_major import FeatureMajorEngine
from .native import native_engines
from .sdpa import sdpa_engines
from .torch_ops import EagerEngine
from .triton import triton_engines


def all_impls() -> list[Engine]:
    """Every engine; what cannot run on a device or a shape says so when asked."""
    return [
        *native_engines(),
        *triton_engines(),
        FeatureMajorEngine(),
        DenseEngine(),
        BatchedEngine(),
        *sdpa_engines(),
        EagerEngine(),
    ]
