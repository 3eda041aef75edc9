"""Recovery: what a compressed model lost is taught to it again by the dense model, on images without labels."""

from .objectives import BlockReconstruction, FeatureDistillation
from .plan import RecoveryPlan
from .recovery import RecoveryResult, recover

__all__ = ["BlockReconstruction", "FeatureDistillation", "RecoveryPlan", "RecoveryResult", "recover"]
