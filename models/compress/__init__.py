"""Makes models smaller, and dense again: projection of weights, compression and densification of bundles."""

from .compression import CompressedLayer, CompressReport, compress_model, project_layer
from .densification import DensifyReport, densify_layer, densify_model
from .projection import Projection, project_linear, project_monarch, project_operator, projection_error

__all__ = [
    "CompressReport",
    "CompressedLayer",
    "DensifyReport",
    "Projection",
    "compress_model",
    "densify_layer",
    "densify_model",
    "project_layer",
    "project_linear",
    "project_monarch",
    "project_operator",
    "projection_error",
]
