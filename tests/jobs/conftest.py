"""A tiny ViT and images, as in the model tests."""

from ..models.conftest import pictures as pictures
from ..models.conftest import vit as vit
