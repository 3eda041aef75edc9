"""Operators of a program that act on each row alone, but for products: norms, gates, rotations."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm of the stream's rows: weight and bias (embed_dim,)."""

    weight: Floats
    bias: Floats
    eps: float


@dataclass(frozen=True, eq=False)
class RmsNorm(Norm):
    """RMSNorm: x / sqrt(mean(x^2) + eps), times the weight; the bias is zeros."""


@dataclass(frozen=True, eq=False)
class Renew:
    """The stream is from now on what a norm gives of its rows: of the first channels, as `InnerNorm` does."""

    norm: Norm


@dataclass(frozen=True, eq=False)
class ReadStream:
    """Gives the stream as it is, without a norm."""


@dataclass(frozen=True, eq=False)
class PostNorm:
    """Adds a norm of what the operator before gave to the stream."""

    norm: Norm


@dataclass(frozen=True, eq=False)
class InnerNorm:
    """A norm of what the operator before gave: of the first channels, as many as its weight has; the others are 0."""

    norm: Norm


@dataclass(frozen=True, eq=False)
class Glu:
    """Gated linear unit: channels a, and as many channels b, -> SiLU(a) b (SwiGLU, arXiv 2002.05202)."""


@dataclass(frozen=True, eq=False)
class QkNorm:
    """Norms of each head's queries and keys, with weights (heads * head_dim,), of channels (3, heads, head_dim)."""

    heads: int
    queries: Norm
    keys: Norm


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embeddings (arXiv 2104.09864) of queries, keys and values (tokens, 3, heads, head_dim).

    Channels i and i + head_dim / 2 of queries and keys become x_i cos - x_j sin and x_j cos + x_i sin.

    Args:
        cos, sin: (tokens, 1 or heads, head_dim / 2).
    """

    heads: int
    cos: Floats
    sin: Floats


@dataclass(frozen=True, eq=False)
class Keep:
    """Keeps what the operator before gave for the next attention; what lies between reads the stream."""


@dataclass(frozen=True, eq=False)
class Join:
    """Gives new tokens, each with the channels of some of the stream's tokens one behind the other.

    Args:
        rows: (new tokens, how many are joined), tokens of the stream.
    """

    rows: Places


@dataclass(frozen=True, eq=False)
class NewStream:
    """The stream is from now on what the operator before gave."""


@dataclass(frozen=True, eq=False)
class AddValues:
    """Adds the values of the last attention to the stream, which has as many channels."""


@dataclass(frozen=True, eq=False)
class StartTokens:
    """Starts a stream that is the same for all images: class token and positions, to which a branch then adds.

    Args:
        start: (tokens, embed_dim).
    """

    start: Floats


@dataclass(frozen=True, eq=False)
class Unmerge:
    """Repeats merged tokens of the stream by their sizes, so that a mean or an attention pool counts all."""


@dataclass(frozen=True, eq=False)
class Transpose:
    """Gives a norm's tokens as channels: (tokens, embed_dim) -> (embed_dim, tokens), for an MLP over tokens (Mixer)."""


@dataclass(frozen=True, eq=False)
class AddTransposed:
    """Adds what the last factor gave of the stream's channels, (embed_dim, tokens), to the stream."""


Inner = InnerNorm | Glu | QkNorm | Rotary
"""What acts on rows of channels that a factor or an attention gave, and that nothing has read yet."""

RowOperator = Norm | Renew | ReadStream | Inner | PostNorm | NewStream | AddValues | Keep
Transposition = Transpose | AddTransposed
