"""The published shapes and models that are measured, their goals, and the work that they cannot avoid."""

from dataclasses import dataclass
from typing import NamedTuple

SHAPE_ITEMSIZE = 2
"""Bytes of the numbers that the shapes count in."""


@dataclass(frozen=True)
class MlpShape:
    """An MLP of width `width` and hidden width `hidden` on `tokens` tokens an image.

    `goal` is the speed over the best dense row that the project asks for from batch 32 on; None where it asks none.
    """

    name: str
    width: int
    hidden: int
    tokens: int
    goal: float | None = None

    def dense_flops(self, rows: int) -> float:
        return 4.0 * rows * self.width * self.hidden

    def monarch_flops(self, rows: int, nblocks: int) -> float:
        """Four factors: of each layer (narrow x narrow + narrow x wide) / nblocks."""
        narrow = min(self.width, self.hidden)
        return 4.0 * rows * narrow * (self.width + self.hidden) / nblocks

    def dense_weight_bytes(self) -> float:
        return 2.0 * 2 * self.width * self.hidden

    def monarch_weight_bytes(self, nblocks: int) -> float:
        return 2.0 * 2 * min(self.width, self.hidden) * (self.width + self.hidden) / nblocks

    def activation_bytes(self, rows: int) -> float:
        """Input read once, output written once, 16 bits: what one launch cannot avoid."""
        return 2.0 * 2 * rows * self.width

    def hidden_bytes(self, rows: int) -> float:
        """Hidden activations written and read back: what two launches add."""
        return 2.0 * 2 * rows * self.hidden


MLP_SHAPES = (
    MlpShape("ViT-B", 768, 3072, 197, goal=2.0),
    MlpShape("ViT-S", 384, 1536, 197, goal=2.0),
    MlpShape("ViTAE-S, T2T-14", 384, 1152, 196, goal=1.5),
    MlpShape("ViTAE-T, T2T-7", 256, 512, 196, goal=1.3),
    MlpShape("ViT-T, DeiT-T", 192, 768, 197),
)

DRY = "dry run"
"""The shapes of dry runs, which prove the script and give no figure, have this name."""

DRY_MLP = MlpShape(DRY, 64, 128, 17)

GOAL_SHAPES = ("ViT-B", "ViT-S")
GOAL_BATCHES = (32, 128)
"""MLPs and attention of these shapes at these batches are measured first."""

ROUNDS = (1, 2)
"""What has a goal is measured so often; once shows nothing."""


def mlp_shape(name: str) -> MlpShape:
    """Return the MLP of that name."""
    return next(shape for shape in (*MLP_SHAPES, DRY_MLP) if shape.name == name)


@dataclass(frozen=True)
class AttentionShape:
    """`heads` heads of `head_dim` over `tokens` tokens."""

    name: str
    heads: int
    head_dim: int
    tokens: int

    def flops(self, batch: int) -> float:
        return 4.0 * batch * self.heads * self.tokens**2 * self.head_dim

    def moved_bytes(self, batch: int) -> float:
        """q, k, v read once, the output written once."""
        return 2.0 * 4 * batch * self.tokens * self.heads * self.head_dim


ATTENTION_SHAPES = (
    AttentionShape("ViT-B", 12, 64, 197),
    AttentionShape("ViT-S", 6, 64, 197),
    AttentionShape(DRY, 2, 32, 17),
)


def attention_shape(name: str) -> AttentionShape:
    """Return the attention of that name."""
    return next(shape for shape in ATTENTION_SHAPES if shape.name == name)


PERFORMERS = {
    "ViTAE-T cell 1": (256, 64, 3136),
    "ViTAE-T cell 2": (192, 64, 784),
    "ViTAE-S cell 1": (256, 96, 3136),
    "ViTAE-S cell 2": (192, 192, 784),
}
"""Reduction cells: input width, token width, tokens."""

BRANCHES = {
    "ViTAE-T": (256, 4, 2, 64, False),
    "ViTAE-S": (384, 6, 3, 96, False),
    "ViTAE-B": (768, 12, 4, 192, True),
}
"""Normal cells: width, heads, mlp ratio, groups, shallow with a class token."""

MLPS, ALL = ("mlp",), ("mlp", "qkv", "proj")
"""The linear layers that are Monarch."""


class Forwards(NamedTuple):
    """The whole forwards of one architecture: which layers are Monarch, and the batches."""

    layers: tuple[tuple[str, ...], ...]
    batches: tuple[int, ...]


FORWARDS = {
    "vit_base_patch16_224": Forwards((MLPS, ALL), GOAL_BATCHES),
    "vit_small_patch16_224": Forwards((MLPS, ALL), GOAL_BATCHES),
    "vitae_basic_tiny": Forwards((MLPS,), (32, 1)),
    "vitae_basic_small": Forwards((MLPS,), (32, 1)),
    "deit_tiny_patch16_224": Forwards((MLPS,), (32, 1)),
}
"""Those that goals are set for come first."""
