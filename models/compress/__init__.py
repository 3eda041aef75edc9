"""Compresses models, with calibration, projection and budgets, and makes them dense again."""

from .compression import CalibrationData, CompressReport, compress_model
from .densification import DensifyReport, densify_layer, densify_model
from .projection.plain import (
    Projection,
    project_linear,
    project_monarch,
    project_operator,
    project_state,
    projection_error,
)
from .replacement import project_layer, replace_layer
from .request import CompressRequest

__all__ = [
    "CalibrationData",
    "CompressReport",
    "CompressRequest",
    "DensifyReport",
    "Projection",
    "compress_model",
    "densify_layer",
    "densify_model",
    "project_layer",
    "project_linear",
    "project_monarch",
    "project_operator",
    "project_state",
    "projection_error",
    "replace_layer",
]
