"""ViTAE (arXiv 2106.03348) and ViTAEv2 (arXiv 2202.10108): vision transformers with convolutional inductive bias."""

from .model import ViTAE
from .model_v2 import ViTAEv2
from .variants import VITAE_V2_VARIANTS, VITAE_VARIANTS

__all__ = ["VITAE_V2_VARIANTS", "VITAE_VARIANTS", "ViTAE", "ViTAEv2"]
