"""What a vision transformer computes, as a list of operators on tokens that no instruction set has touched yet.

The tokens of an image are the rows of the *stream* (tokens, embed_dim), float32. Between attentions every operator acts
on rows alone: a norm reads the stream, a factor reads what the one before it gave, and the last of them adds to the
stream or gives the queries, keys and values of the next attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Quantiser:
    """How numbers become 8 bits without a sign: value = scale (q - zero), q from 0 to 255, by channel.

    Args:
        scale, zero: (channels,).
    """

    scale: Floats
    zero: Floats


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm of the stream's rows: weight and bias (embed_dim,)."""

    weight: Floats
    bias: Floats
    eps: float


@dataclass(frozen=True, eq=False)
class Factor:
    """Products of blocks: y[outputs[b]] = weight[b] x[inputs[b]] + bias[outputs[b]], each output in one block.

    A dense or block-diagonal layer is one factor, a Monarch or low-rank layer two.

    Args:
        weight: (blocks, out, in): floats, or int8 values where `scale` is given.
        inputs: (blocks, in), channels of x, none twice.
        outputs: (blocks, out), channels of y; those from `width` on are not kept.
        width: channels of y.
        bias: (width,).
        quantiser: of x; None computes in bfloat16.
        scale: (blocks, out): what an int8 weight's 1 is worth, where its inputs are the quantiser's 8-bit numbers.
        gelu: whether GELU follows.
        adds: whether the result is added to the stream.
        name: of the layer that it is a part of; no two are equal.
    """

    weight: NDArray[Any]
    inputs: Places
    outputs: Places
    width: int
    bias: Floats
    quantiser: Quantiser | None = None
    scale: Floats | None = None
    gelu: bool = False
    adds: bool = False
    name: str = ""


@dataclass(frozen=True, eq=False)
class Attention:
    """Softmax attention: (tokens, 3, heads, head_dim) -> (tokens, heads, head_dim).

    A token that stands for several, since some were merged, counts as often.

    The factor before it has multiplied queries by log2(e) times the attention's scale: softmax is of powers of two.

    Args:
        first: whether it and all operators behind it compute the first token alone.
    """

    heads: int
    head_dim: int
    first: bool = False


@dataclass(frozen=True, eq=False)
class Merge:
    """Merges tokens of the stream (Token Merging, arXiv 2210.09461), by the attention's keys before it.

    Args:
        heads, head_dim: of that attention.
        prefix: tokens in front that stay as they are; the first is the class token.
        count: tokens that become part of others, fewer than half of those behind the prefix.
        protect: this, times the tokens behind the prefix, times the class token's attention to one of them, is taken
            off its similarity to others.
    """

    heads: int
    head_dim: int
    prefix: int
    count: int
    protect: float = 0.0


@dataclass(frozen=True, eq=False)
class Embed:
    """The first operator: patches of the image, times a weight, are added to the first values of the stream.

    Args:
        weight: (embed_dim, 3, patch, patch).
        bias: (embed_dim,).
        start: (tokens, embed_dim): class token and positions. The last tokens are those of the patches.
        size: side of the image, px.
    """

    weight: Floats
    bias: Floats
    start: Floats
    size: int


@dataclass(frozen=True, eq=False)
class Head:
    """The last operator: the norm and the classifier of the first token."""

    norm: Norm
    classifier: Factor


Operator = Norm | Factor | Attention | Merge


@dataclass(frozen=True, eq=False)
class Program:
    """A model. The operators between its ends act on the whole stream."""

    embed: Embed
    operators: Sequence[Operator]
    head: Head


def dense(weight: Floats, bias: Floats | None, **options: Any) -> Factor:
    """Make the factor of a dense layer: weight (out, in)."""
    rows, columns = weight.shape
    places = np.arange(max(rows, columns))
    bias = np.zeros(rows) if bias is None else bias
    return Factor(weight[None], places[None, :columns], places[None, :rows], rows, bias, **options)


def monarch(w1: Floats, w2: Floats, bias: Floats | None, outputs: int, **options: Any) -> list[Factor]:
    """Make the factors of a Monarch layer from w1 (K, q, p) and w2 (J, s, r), as `kernels/reference.py` defines it."""
    (K, q, p), (J, s, r) = w1.shape, w2.shape
    middle, name = np.arange(K * q), options.get("name", "")
    inputs = np.arange(K * p).reshape(K, p)
    first = Factor(w1, inputs, middle.reshape(K, q), K * q, np.zeros(K * q), name=f"{name}.w1")
    bias = np.zeros(outputs) if bias is None else bias
    return [first, Factor(w2, middle.reshape(r, J).T, np.arange(J * s).reshape(s, J).T, outputs, bias, **options)]
