"""Teaches a compressed model again what it lost, by the dense model's answers on images without labels."""

from .blocks import block_names as block_names
from .objectives import BlockReconstruction as BlockReconstruction
from .objectives import FeatureDistillation as FeatureDistillation
from .plan import RecoveryPlan as RecoveryPlan
from .recovery import RecoveryResult as RecoveryResult
from .recovery import only_trained as only_trained
from .recovery import recover as recover
