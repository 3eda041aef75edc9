"""Fixtures of the model tests: statistics of inputs, images, and a tiny ViT as a module, not as a bundle."""

from ...models.conftest import inputs as inputs
from ...models.conftest import pictures as pictures
from ...models.conftest import tiny_vit as tiny_vit
from ...models.conftest import vit as vit
