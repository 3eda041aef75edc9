"""Recipe says what is done to a model, as plain data: what a search proposes, a file asks for and a bundle records."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, TypeVar

from ..models.errors import quoted
from ..models.layers.shapes import KINDS as LAYERS
from ..models.layers.token_plan import ALL_TOKENS, TokenPlan

KINDS = ("monarch", "lowrank", "blockdiag")
COSTS = ("parameters", "macs", "ms")

T = TypeVar("T")


class RecipeError(ValueError):
    """A recipe that cannot be; the message is one line."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


@dataclass(frozen=True)
class Structure:
    """Linear layers that become structured matrices.

    Args:
        kind: monarch, lowrank or blockdiag.
        layers: which of them, as in `select_linears`.
        nblocks, rank, shuffle: as in `LayerSpec`; not with a budget.
        budget: share of what these layers cost dense, above 0 and below 1. Each then has the block count and rank, or
            stays dense, with which the answers change least: for `monarch` of any block count, low rank among them, or
            block-diagonal.
        cost: what the budget counts: parameters, macs, or ms measured on this machine.

    Raises:
        RecipeError: a value outside its limits.
    """

    kind: str = "monarch"
    layers: tuple[str, ...] = ("mlp",)
    nblocks: int = 4
    rank: int | None = None
    shuffle: bool = False
    budget: float | None = None
    cost: str = "parameters"

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise RecipeError(f"structure: kind {quoted(self.kind)} must be one of {', '.join(KINDS)}")
        if not self.layers or not all(isinstance(entry, str) for entry in self.layers):
            raise RecipeError(f"structure: layers {quoted(self.layers)} must be names, patterns or roles such as mlp")
        if type(self.nblocks) is not int or not (self.rank is None or type(self.rank) is int):
            raise RecipeError(f"structure: nblocks {quoted(self.nblocks)}, rank {quoted(self.rank)}: whole numbers")
        if type(self.shuffle) is not bool or (self.shuffle and self.kind != "blockdiag"):
            raise RecipeError(f"structure: shuffle {quoted(self.shuffle)}: true or false, true of blockdiag alone")
        if self.budget is not None and not (_is_number(self.budget) and 0 < self.budget < 1):
            raise RecipeError(f"structure: budget {quoted(self.budget)} must be above 0 and below 1, a share of dense")
        if self.budget is not None and (self.kind != "monarch" or self.rank is not None):
            raise RecipeError(f"structure: {self.kind}, rank {self.rank}: a budget chooses among Monarch layers alone")
        if self.cost not in COSTS:
            raise RecipeError(f"structure: cost {quoted(self.cost)} must be one of {', '.join(COSTS)}")

    def __str__(self) -> str:
        name, where = LAYERS[self.kind].name, ", ".join(self.layers)
        if self.budget is not None:
            return f"{name}, {100 * self.budget:g} % of {self.cost} in {where}"
        blocks = f" {self.nblocks} blocks" if "nblocks" in LAYERS[self.kind].option_names else ""
        return f"{name}{blocks}{'' if self.rank is None else f' rank {self.rank}'} in {where}"


@dataclass(frozen=True)
class WidthRatios:
    """What narrower layers keep: of the MLPs' hidden units, and of the head dims of queries and keys."""

    mlp: float = 1.0
    qk: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (_is_number(value) and 0 < value <= 1):
                raise RecipeError(f"widths: {name} {quoted(value)} must be above 0 and at most 1")

    def __str__(self) -> str:
        parts = {"queries and keys": self.qk, "hidden units": self.mlp}
        return ", ".join(f"{100 * ratio:g} % of {name}" for name, ratio in parts.items() if ratio < 1)


FULL_WIDTH = WidthRatios()


@dataclass(frozen=True)
class QuantizationConfig:
    """8-bit weights and activations.

    Args:
        alpha: SmoothQuant's; None does without it.
        symmetric: activations have no zero points, without which CPUs with AMX are faster.
        per_channel: each channel of the activations has a scale of its own, which our CPU kernels alone compute by.
        ignored_layers: names of linear layers that stay in bfloat16; with `per_channel`.
    """

    alpha: float | None = None
    symmetric: bool = False
    per_channel: bool = False
    ignored_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.alpha is None or (_is_number(self.alpha) and 0 <= self.alpha <= 1)):
            raise RecipeError(f"quantization: alpha {quoted(self.alpha)} must be between 0 and 1")
        for name in ("symmetric", "per_channel"):
            if type(value := getattr(self, name)) is not bool:
                raise RecipeError(f"quantization: {name} {quoted(value)} must be true or false")
        if self.per_channel and (self.symmetric or self.alpha is not None):
            raise RecipeError("quantization: per_channel goes with neither alpha nor symmetric")
        if not all(isinstance(name, str) for name in self.ignored_layers) or (
            self.ignored_layers and not self.per_channel
        ):
            raise RecipeError(f"quantization: ignored_layers {quoted(self.ignored_layers)}: names, with per_channel")

    def __str__(self) -> str:
        if self.per_channel:
            count = len(self.ignored_layers)
            ignored = f", {count} layer{'s' * (count > 1)} in bfloat16" if count else ""
            return f"per-channel int8{ignored}"
        what = "symmetric int8" if self.symmetric else "int8"
        return what if self.alpha is None else f"{what}, SmoothQuant {self.alpha:g}"


@dataclass(frozen=True)
class DistillationConfig:
    """A training to answer as the dense model does, by AdamW with a warm-up and a cosine.

    Args:
        steps: rounded up to whole passes over the images.
        batch_size: images of a step.
        lr: learning rate after the warm-up.
        features: weight of the blocks' outputs beside the answers.
        mixup, cutmix: as in `TrainingRecipe`.
        label_weight: weight of the labels beside the dense model's answers, 0 to 1.
        blend_fraction: share of the steps in which structured layers take over from the dense ones; 0 is at once.

    Raises:
        RecipeError: a value outside its limits.
    """

    steps: int = 120
    batch_size: int = 16
    lr: float = 2e-5
    features: float = 0.5
    mixup: float = 0.2
    cutmix: float = 0.0
    label_weight: float = 0.0
    blend_fraction: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise RecipeError(f"distillation: {name} {quoted(value)} must be a whole number from 1 on")
        for name in ("lr", "features", "mixup", "cutmix", "label_weight", "blend_fraction"):
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0) or (name in ("label_weight", "blend_fraction") and value > 1):
                raise RecipeError(f"distillation: {name} {quoted(value)} must be a number from 0 on, shares up to 1")
        if self.lr == 0:
            raise RecipeError("distillation: lr 0 would change nothing")


OF_STRUCTURES = DistillationConfig(steps=300, lr=1e-4, features=10.0, mixup=0.5, cutmix=1.0)
"""A structured layer has more to learn again than a model that merges tokens."""


@dataclass(frozen=True)
class Recipe:
    """What is done to a model; nothing, where all is left out.

    Args:
        tokens: which tokens it computes.
        quantization: how it is quantised; None where it is not.
        distillation: how it is trained; None where it is not.
        widths: how narrow its layers are.
        structure: which of its layers are structured.
    """

    tokens: TokenPlan = ALL_TOKENS
    quantization: QuantizationConfig | None = None
    distillation: DistillationConfig | None = None
    widths: WidthRatios = FULL_WIDTH
    structure: Structure | None = None

    def __str__(self) -> str:
        parts = [] if self.structure is None else [str(self.structure)]
        parts += ["class token last"] if self.tokens.class_last else []
        if (merging := self.tokens.merging) is not None:
            blocks = "every block" if merging.every == 1 else f"every {merging.every} blocks"
            protect = f", class attention {merging.protect:g}" if merging.protect else ""
            parts.append(f"merge {100 * merging.share:g} % {blocks} from {merging.start}{protect}")
        parts += [str(self.widths)] if self.widths != FULL_WIDTH else []
        parts += ["distilled"] if self.distillation else []
        parts += [str(self.quantization)] if self.quantization else []
        return ", ".join(parts) or "dense"

    @property
    def floating(self) -> "Recipe":
        """The same without the quantisation."""
        return replace(self, quantization=None)

    @property
    def plain(self) -> "Recipe":
        """The same, neither trained nor quantised."""
        return replace(self, quantization=None, distillation=None)

    @property
    def file(self) -> str:
        """A name for files that is another for every recipe."""
        parts: dict[str, object] = {"merged": self.tokens.merging, "last": self.tokens.class_last}
        parts |= {"narrow": self.widths != FULL_WIDTH, "distilled": self.distillation, "int8": self.quantization}
        names = [*([self.structure.kind] if self.structure else []), *(name for name, part in parts.items() if part)]
        plain = json.loads(json.dumps(self.to_dict()), parse_int=float)  # 1 and 1.0 are equal
        names.append(hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12])
        return "_".join(names) if plain else "dense"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; parts that are not used are left out."""
        parts: dict[str, Any] = {
            "structure": self.structure,
            "quantization": self.quantization,
            "distillation": self.distillation,
        }
        values = {name: asdict(part) for name, part in parts.items() if part is not None}
        if self.quantization is not None:
            ignored = values["quantization"].pop("ignored_layers")
            values["quantization"] |= {"ignored_layers": list(ignored)} if ignored else {}
        if self.structure is not None:
            values["structure"] |= {"layers": list(self.structure.layers)}
        if self.tokens:
            values["tokens"] = self.tokens.to_dict()
        return values | ({"widths": asdict(self.widths)} if self.widths != FULL_WIDTH else {})

    @classmethod
    def from_dict(cls, values: Any) -> "Recipe":
        """Read the JSON form.

        Raises:
            RecipeError: unknown keys, or values outside their limits.
        """
        check_keys("a recipe", values, {part.name for part in fields(cls)})
        structure = _with_tuple(values, "structure", "layers")
        quantization = _with_tuple(values, "quantization", "ignored_layers")
        try:
            return cls(
                tokens=TokenPlan.from_dict(values.get("tokens", {})),
                quantization=_part(QuantizationConfig, "quantization", quantization),
                distillation=_part(DistillationConfig, "distillation", values.get("distillation")),
                widths=_part(WidthRatios, "widths", values.get("widths", {})) or FULL_WIDTH,
                structure=_part(Structure, "structure", structure),
            )
        except (TypeError, ValueError) as error:
            raise RecipeError(str(error)) from None


def _with_tuple(values: Mapping[str, Any], name: str, key: str) -> Any:
    """A part of a recipe whose list, which JSON has, is a tuple."""
    part = values.get(name)
    if not isinstance(part, Mapping) or key not in part:
        return part
    if not isinstance(part[key], list):
        raise RecipeError(f"{name}: {key} must be a list")
    return {**part, key: tuple(part[key])}


def _part(kind: type[T], name: str, values: Any) -> T | None:
    if values is None:
        return None
    check_keys(name, values, {part.name for part in fields(kind)})  # type: ignore[arg-type]
    return kind(**values)


def check_keys(name: str, values: Any, known: set[str]) -> None:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{name} {quoted(values)} must be an object")
    if unknown := sorted(set(values) - known):
        raise RecipeError(f"{name}: unknown key {quoted(unknown[0])}: must be one of {', '.join(sorted(known))}")
