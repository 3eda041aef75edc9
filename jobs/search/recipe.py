"""The recipes of a search: what it may do to a model, and the names that a person reads."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from ...models.architectures.token_blocks import token_depth
from ...models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan

MERGED_SHARES, EVERY, PROTECT = (0.16, 0.22, 0.28, 0.34, 0.4), (2, 3, 4), (0.1, 0.2)
"""Token schedules that are tried. Few large merges take less time than many small ones: at one image a time, merging in
every block gained nothing. Keeping what the class token attends to took a third off the KL wherever it was measured;
which of the two weights is nearer depends on the schedule."""

ENOUGH_KL = 0.02
"""Rounding to 8 bits that loses less needs no SmoothQuant, which takes minutes."""


@dataclass(frozen=True)
class QuantizationConfig:
    """8-bit weights and activations.

    Args:
        alpha: SmoothQuant's; None does without it.
        symmetric: activations have no zero points, without which CPUs with AMX are faster.
        per_channel: each channel of the activations has a scale of its own, which our CPU kernels alone compute by.
    """

    alpha: float | None = None
    symmetric: bool = False
    per_channel: bool = False

    def __str__(self) -> str:
        if self.per_channel:
            return "per-channel int8"
        what = "symmetric int8" if self.symmetric else "int8"
        return what if self.alpha is None else f"{what}, SmoothQuant {self.alpha:g}"


QUANTIZATIONS = (
    QuantizationConfig(per_channel=True),
    QuantizationConfig(),
    QuantizationConfig(symmetric=True),
    QuantizationConfig(0.5),
)
"""The quantisations in the order in which they are tried. DeiT-Tiny's KL was .005 without SmoothQuant, .018 with."""


@dataclass(frozen=True)
class WidthRatios:
    """What narrower layers keep: of the MLPs' hidden units, and of the head dims of queries and keys."""

    mlp: float = 1.0
    qk: float = 1.0

    def __str__(self) -> str:
        parts = {"queries and keys": self.qk, "hidden units": self.mlp}
        return ", ".join(f"{100 * ratio:g} % of {name}" for name, ratio in parts.items() if ratio < 1)


FULL_WIDTH = WidthRatios()


@dataclass(frozen=True)
class Recipe:
    """What is done to a model.

    Args:
        tokens: which tokens it computes.
        quantization: how it is quantised; None where it is not.
        distilled: it was trained to answer as the dense model.
        widths: how narrow its layers are.
    """

    tokens: TokenPlan = ALL_TOKENS
    quantization: QuantizationConfig | None = None
    distilled: bool = False
    widths: WidthRatios = FULL_WIDTH

    def __str__(self) -> str:
        parts = ["class token last"] if self.tokens.class_last else []
        if (merging := self.tokens.merging) is not None:
            parts.append(merging_name(merging))
        parts += [str(self.widths)] if self.widths != FULL_WIDTH else []
        parts += ["distilled"] if self.distilled else []
        parts += [str(self.quantization)] if self.quantization else []
        return ", ".join(parts) or "dense"

    @property
    def floating(self) -> "Recipe":
        """The same without the quantisation."""
        return replace(self, quantization=None)

    @property
    def plain(self) -> "Recipe":
        """The same, neither trained nor quantised."""
        return Recipe(self.tokens, widths=self.widths)

    @property
    def file(self) -> str:
        """A name for files that is another for every recipe."""
        merging = self.tokens.merging
        parts = [f"m{merging.start}-{merging.every}-{merging.share:g}-{merging.protect:g}"] if merging else []
        parts += ["last"] if self.tokens.class_last else []
        parts += [f"w{self.widths.mlp:g}-{self.widths.qk:g}"] if self.widths != FULL_WIDTH else []
        parts += ["distilled"] if self.distilled else []
        if self.quantization:
            form = "channels" if self.quantization.per_channel else self.quantization.alpha
            parts += [f"int8-{form}" + ("-symmetric" if self.quantization.symmetric else "")]
        return "_".join(parts) or "dense"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "tokens": self.tokens.to_dict(),
            "bits": asdict(self.quantization) if self.quantization else None,
            "distilled": self.distilled,
            "widths": asdict(self.widths),
        }


def merging_name(merging: TokenMerging) -> str:
    """Say in a few words which tokens merge."""
    blocks = "every block" if merging.every == 1 else f"every {merging.every} blocks"
    protect = f", class attention {merging.protect:g}" if merging.protect else ""
    return f"merge {100 * merging.share:g} % {blocks} from {merging.start}{protect}"


def mergings(model: nn.Module) -> Iterator[TokenMerging]:
    """Yield the schedules that are tried: from a quarter and a third of the depth on, since early merges cost most."""
    depth, class_token = token_depth(model), getattr(model, "cls_token", None) is not None
    for start in sorted({max(1, depth // 4), max(1, depth // 3)}):
        for every in EVERY:
            for share in MERGED_SHARES:
                for protect in PROTECT if class_token else (0.0,):
                    yield TokenMerging(start, every, share, protect)
