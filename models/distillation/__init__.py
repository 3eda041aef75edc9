"""Teaches a compressed model again what it lost, by the dense model's answers on images without labels."""

from .blocks import block_names as block_names
from .distill import DistillationResult as DistillationResult
from .distill import distill as distill
from .distill import only_trained as only_trained
from .objectives import BlockReconstruction as BlockReconstruction
from .objectives import FeatureDistillation as FeatureDistillation
from .plan import DistillationPlan as DistillationPlan
