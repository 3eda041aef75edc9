"""Teaches a compressed model again what it lost, by the dense model's answers on images without labels."""

from .objectives import BlockReconstruction, FeatureDistillation
from .plan import RecoveryPlan
from .recovery import RecoveryResult, recover

__all__ = ["BlockReconstruction", "FeatureDistillation", "RecoveryPlan", "RecoveryResult", "recover"]
