"""ViTAE v1 (arXiv 2106.03348): vision transformers with convolutional inductive bias."""

from .model import ViTAE
from .variants import VITAE_VARIANTS

__all__ = ["VITAE_VARIANTS", "ViTAE"]
