"""TokenPlan says which tokens a model computes, as plain data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from ..errors import quoted

MAX_BLOCK = 255
MAX_SHARE = 0.5
"""More than half cannot be merged at once: every merged token needs one of the other half."""
MAX_PROTECT = 1.0


@dataclass(frozen=True)
class TokenMerging:
    """A schedule of token merging: it says which blocks merge tokens, and how many. A model's last block never does.

    A ViTAE's blocks are its normal cells with attention over all tokens. Each gives all tokens back, so the last may
    merge too.

    Args:
        start: the first block that merges, counted from 0. The first three blocks cost the most accuracy.
        every: distance between blocks that merge.
        share: share of the patch tokens that each of these blocks merges into others, above 0.
        protect: how strongly tokens that the class token attends to are kept: this times their number times their
            class attention is taken off their similarity. 0 for models without a class token.

    Raises:
        ValueError: names the value and its limits.
    """

    start: int = 3
    every: int = 2
    share: float = 0.22
    protect: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("start", 0), ("every", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_BLOCK:
                raise ValueError(f"merging: {name} {quoted(value)} must be a whole number from {least} to {MAX_BLOCK}")
        if not (_is_number(self.share) and 0 < self.share <= MAX_SHARE):
            raise ValueError(f"merging: share {quoted(self.share)} must be above 0 and at most {MAX_SHARE}")
        if not (_is_number(self.protect) and 0 <= self.protect <= MAX_PROTECT):
            raise ValueError(f"merging: protect {quoted(self.protect)} must be between 0 and {MAX_PROTECT:g}")

    def blocks(self, depth: int) -> range:
        """The blocks that merge, of a model of `depth` blocks."""
        return range(self.start, depth - 1, self.every)

    def count(self, patches: int) -> int:
        """How many of so many patch tokens one block merges into others; one of the first set always stays."""
        return max(0, min(round(self.share * patches), (patches - 1) // 2))


@dataclass(frozen=True)
class TokenPlan:
    """A plan says which tokens a model computes. Without arguments the model computes all of them.

    Args:
        merging: merge similar tokens between the blocks.
        class_last: in the last block compute the tokens that the head reads, and no others, from the attention on.
            Exact, except for rounding.
    """

    merging: TokenMerging | None = None
    class_last: bool = False

    def __bool__(self) -> bool:
        return self != ALL_TOKENS

    @property
    def summary(self) -> str:
        """One line: `22 % merged from block 3 on, every 2 blocks; the last block for the class token alone`."""
        said, merging = [], self.merging
        if merging is not None:
            kept = f", what the class token attends to kept ({merging.protect:g})" if merging.protect else ""
            often = "in every block" if merging.every == 1 else f"every {merging.every} blocks"
            said.append(f"{100 * merging.share:g} % merged from block {merging.start} on, {often}{kept}")
        said += ["the last block for the class token alone"] if self.class_last else []
        return "; ".join(said) or "all"

    @classmethod
    def from_dict(cls, values: Any) -> "TokenPlan":
        """Read the JSON form.

        Raises:
            ValueError: members missing or unknown, or values outside their limits.
        """
        _check_members("tokens", values, {f.name for f in fields(cls)})
        merging, class_last = values.get("merging"), values.get("class_last", False)
        if type(class_last) is not bool:
            raise ValueError(f"class_last {quoted(class_last)} must be true or false")
        if merging is not None:
            _check_members("merging", merging, {f.name for f in fields(TokenMerging)})
            merging = TokenMerging(**merging)
        return cls(merging, class_last)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; what is not used is left out."""
        merging = {} if self.merging is None else {"merging": asdict(self.merging)}
        return {**merging, **({"class_last": True} if self.class_last else {})}


ALL_TOKENS = TokenPlan()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_members(name: str, values: Any, known: set[str]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} {quoted(values, 40)} must be an object")
    if unknown := sorted(set(values) - known):
        raise ValueError(f"{name}: unknown member {quoted(unknown[0])}: must be one of {', '.join(sorted(known))}")
