"""What a vision transformer computes, as a list of operators on tokens that no instruction set has touched yet.

An image's tokens are the rows of the *stream* (tokens, embed_dim), float32. Between attentions operators act on rows
alone: a norm reads the stream, a factor what the one before it gave, the last adds to the stream or gives the queries,
keys and values of the next attention. Convolutions read the *grid*: the image, or what the stream was at the last
`Grid`. A pyramid of them starts another stream, a branch of them adds to the one that there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .row_operators import Floats, Join, Norm, Places, RowOperator, StartTokens, Transposition, Unmerge

LEAST_GROUPS = 16
"""A branch whose convolutions have at least this many groups is computed with one group in each lane. With fewer groups
lanes would stay idle, so a product computes them, with zeros between the groups."""


@dataclass(frozen=True, eq=False)
class Quantiser:
    """How numbers become 8 bits without a sign: value = scale (q - zero), q from 0 to 255, by channel.

    Args:
        scale, zero: (channels,).
    """

    scale: Floats
    zero: Floats


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
        gelu, silu: whether GELU or SiLU follows.
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
    silu: bool = False
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


@dataclass(frozen=True, eq=False, kw_only=True)
class BiasedAttention(Attention):
    """Attention with a bias for each head, query and key, which table[head, index[query, key]] is.

    Args:
        table: (heads, entries), times log2(e).
        index: (tokens, tokens).
    """

    table: Floats
    index: Places


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowedAttention(BiasedAttention):
    """Attention within windows of tokens, with biases of several kinds: table[head, index[kind, query, key]].

    Args:
        index: (kinds, n, n), for windows of n tokens.
        windows: (windows, n): all tokens, each in one of them.
        kinds: (windows,).
    """

    windows: Places
    kinds: Places


@dataclass(frozen=True, eq=False)
class Depthwise:
    """A depthwise convolution of the stream, whose tokens are a square grid, with zeros around it.

    Args:
        weight: (embed_dim, kernel, kernel), with an odd kernel.
        bias: (embed_dim,).
    """

    weight: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class ResponseNorm:
    """ConvNeXt V2's global response norm (arXiv 2301.00808) of what a factor gave.

    x + bias + weight x g / (mean(g) + eps): g is the root of each channel's sum of squares over all tokens, the mean
    is over channels.

    Args:
        weight, bias: (channels,).
    """

    weight: Floats
    bias: Floats
    eps: float


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
class Convolution:
    """A factor of the kernel's taps at each place of a square grid: (side, side, channels) -> (across, across, width).

    Args:
        factor: its input tap x channels + c is channel c at that tap. Its blocks hold the groups in their order.
        stride, dilation: in places of the grid.
        padding: places of zeros on each side.
    """

    factor: Factor
    side: int
    channels: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def across(self) -> int:
        """Side of what it gives."""
        return (self.side + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1


@dataclass(frozen=True, eq=False)
class Grid:
    """Makes the grid of what the stream now is, without the first tokens of a prefix."""

    prefix: int = 0


@dataclass(frozen=True, eq=False)
class Pyramid:
    """Starts the stream anew with what convolutions of the grid give, their channels one behind the other."""

    convolutions: Sequence[Convolution]


@dataclass(frozen=True, eq=False)
class Branch:
    """Adds the last of convolutions, of which the first reads the grid, to the stream behind the first tokens."""

    convolutions: Sequence[Convolution]
    prefix: int = 0

    @property
    def by_groups(self) -> bool:
        """Whether many groups stay apart in all of its convolutions: then a lane computes a group."""
        return all(
            convolution.groups == self.convolutions[0].groups >= LEAST_GROUPS
            and (convolution.stride, convolution.dilation, convolution.padding) == (1, 1, convolution.kernel // 2)
            and convolution.kernel % 2 == 1
            and convolution.factor.silu | convolution.factor.adds
            for convolution in self.convolutions
        )


@dataclass(frozen=True, eq=False)
class Performer:
    """Linear attention in float32: keys, queries, values (tokens, 3 width) -> (tokens, width).

    The values are the new stream. With phi(t) = exp(w t - |t|^2 / 2) / sqrt(features),
    y_t = sum_s (phi(q_t) phi(k_s)) v_s / (sum_s phi(q_t) phi(k_s) + eps).
    Source: Performer (arXiv 2009.14794), positive random features.

    Args:
        w: (features, width).
    """

    w: Floats
    eps: float


@dataclass(frozen=True, eq=False)
class Pixels:
    """The first operator of a model whose first grid is the image itself.

    Args:
        size: side of the image, px.
    """

    size: int


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
class NormedEmbed(Embed):
    """The first operator, where a norm of each patch's product is added to the first values of the stream."""

    norm: Norm


@dataclass(frozen=True, eq=False)
class Head:
    """The last operator: the norm, if there is one, and the classifier of the first token or of a mean.

    Args:
        mean_from: the first of the tokens whose mean is classified; None classifies the first token.
    """

    norm: Norm | None
    classifier: Factor
    mean_from: int | None = None


@dataclass(frozen=True, eq=False)
class JoinedHead(Head):
    """The last operator, where the classifier reads the first token and the mean of `count` others, or of all."""

    count: int | None = None


OnRows = RowOperator | Factor
OnTiles = OnRows | Grid | Pyramid | Join
OnTokens = Attention | Performer | ResponseNorm | Transposition
Operator = OnTiles | OnTokens | Depthwise | Merge | Unmerge | Branch | StartTokens


@dataclass(frozen=True, eq=False)
class Program:
    """A model. The operators between its ends act on the whole stream."""

    embed: Embed | Pixels
    operators: Sequence[Operator]
    head: Head
