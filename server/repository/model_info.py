"""To be removed."""

from .served_model import ServedModel as ModelInfo

__all__ = ["ModelInfo"]
