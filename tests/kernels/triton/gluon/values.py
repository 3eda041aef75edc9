"""What the variables of an interpreted Gluon kernel are: tensors in registers, pointers, descriptors, namespaces."""

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class UnknownError(NotImplementedError, AttributeError):
    """A name that the interpreter does not know."""


class Names(SimpleNamespace):
    """A module or namespace of which only some names are known."""

    def __getattr__(self, name: str) -> Any:
        raise UnknownError(f"the interpreter does not know {name}")


class Value:
    """A tensor in registers, with the operations that kernels use."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    dtype = property(lambda self: self.tensor.dtype)

    def to(self, dtype: torch.dtype) -> "Value":
        return Value(self.tensor.to(dtype))

    def _with(self, other: Any, compute: Callable[[Any, Any], Tensor], *, swapped: bool = False) -> "Value":
        if not isinstance(other, Value | int | float):
            raise NotImplementedError(f"{compute.__name__} of a tensor and {type(other).__name__}")
        second = other.tensor if isinstance(other, Value) else other
        if compute in (operator.floordiv, operator.mod) and (self.tensor < 0).any():
            raise NotImplementedError("a GPU rounds quotients of negative numbers otherwise")
        return Value(compute(second, self.tensor) if swapped else compute(self.tensor, second))

    def __add__(self, other: Any) -> "Value":
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> "Value":
        return self._with(other, operator.add, swapped=True)

    def __mul__(self, other: Any) -> "Value":
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> "Value":
        return self._with(other, operator.mul, swapped=True)

    def __floordiv__(self, other: Any) -> "Value":
        return self._with(other, operator.floordiv)

    def __mod__(self, other: Any) -> "Value":
        return self._with(other, operator.mod)

    def __lt__(self, other: Any) -> "Value":
        return self._with(other, operator.lt)


class Pointer:
    """Pointers into a tensor in global memory.

    Args:
        tensor: contiguous.
        at: number of the element, or of each.
        dependent: the launch before may write it.
    """

    def __init__(self, tensor: Tensor, at: Any = 0, *, dependent: bool = False) -> None:
        self.tensor, self.at, self.dependent = tensor, at, dependent
        self.dtype = Names(element_ty=tensor.dtype)

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.tensor, self.at + offset, dependent=self.dependent)

    def elements(self, mask: Value | None) -> tuple[Tensor, Tensor]:
        """Return the numbers of elements, and which of them are accessed."""
        at = self.at.tensor.long()
        accessed = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.tensor.expand(at.shape)
        if ((at < 0) | (at >= self.tensor.numel()))[accessed].any():
            raise IndexError(f"an access outside of the {self.tensor.numel()} elements of a tensor")
        return at, accessed


class Descriptor:
    """A matrix in global memory, of which TMA loads tiles; zeros outside of it. See `Pointer`."""

    def __init__(self, matrix: Tensor, block: tuple[int, int] = (64, 64), *, dependent: bool = False) -> None:
        self.matrix, self.block, self.dependent = matrix, block, dependent
        self.dtype, self.layout = matrix.dtype, None

    def tile(self, at: Sequence[int]) -> Tensor:
        row, column = at
        if row < 0 or column < 0:
            raise NotImplementedError(f"a tile at {row}, {column}")
        tile = self.matrix.new_zeros(self.block)
        part = self.matrix[row : row + self.block[0], column : column + self.block[1]]
        tile[: part.shape[0], : part.shape[1]] = part
        return tile
