"""Evaluates a program by its operators' definitions, in NumPy: what the kernels are held against, and calibrated by."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import (
    Attention,
    BiasedAttention,
    Branch,
    Convolution,
    Depthwise,
    Embed,
    Factor,
    Grid,
    JoinedHead,
    Merge,
    NormedEmbed,
    Performer,
    Program,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from .row_operators import (
    AddTransposed,
    AddValues,
    Floats,
    Glu,
    Inner,
    InnerNorm,
    Join,
    Keep,
    NewStream,
    Norm,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    RmsNorm,
    Rotary,
    StartTokens,
    Transpose,
    Unmerge,
)
from .shape_inference import infer_shapes

Observe = Callable[[Factor, Floats], None]

_exact_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Floats) -> Floats:
    """Compute the error function: exactly in float64, to 1.5e-7 in float32, a hundred times as fast.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    if x.dtype == np.float64:
        return _exact_erf(x)
    z = np.abs(x)
    t = 1 / (1 + 0.3275911 * z)
    p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.copysign(1 - p * np.exp(-z * z), x)


def evaluate(program: Program, images: Floats, observe: Observe = lambda factor, x: None) -> Floats:
    """Compute the logits (n, classes) of images (n, 3, size, size) in the images' number type.

    Int8 weights are taken for what they are worth; inputs are not rounded.

    Args:
        observe: is called with the inputs (rows, channels) of each factor; of a convolution they are its grid.
    """
    stream = _embedded(program.embed, images) if isinstance(program.embed, Embed) else images
    x, qkv, grid, sizes = images, images, images.transpose(0, 2, 3, 1), np.ones(stream.shape[:2], images.dtype)
    for operator, (before, state) in zip(program.operators, pairwise(infer_shapes(program)), strict=True):
        if isinstance(operator, Norm | ReadStream):
            x = _normed(operator, stream) if isinstance(operator, Norm) else stream
        elif isinstance(operator, Renew):
            stream = _changed(InnerNorm(operator.norm), stream)
        elif isinstance(operator, InnerNorm | Glu | QkNorm | Rotary):
            x = _changed(operator, x)
        elif isinstance(operator, PostNorm):
            stream = stream + _normed(operator.norm, x)
        elif isinstance(operator, Join):
            x = stream[:, operator.rows].reshape(len(stream), len(operator.rows), -1)
        elif isinstance(operator, NewStream):
            stream, sizes = x, np.ones(x.shape[:2], images.dtype)
        elif isinstance(operator, StartTokens):
            stream = np.repeat(operator.start[None].astype(images.dtype), len(images), axis=0)
            sizes = np.ones(stream.shape[:2], images.dtype)
        elif isinstance(operator, Transpose):
            x = x.swapaxes(1, 2)
        elif isinstance(operator, AddTransposed):
            stream = stream + x.swapaxes(1, 2)
        elif isinstance(operator, AddValues):
            stream = stream + qkv[:, : state.tokens, 2 * state.width :]
        elif isinstance(operator, Depthwise):
            x = _depthwise(operator, stream)
        elif isinstance(operator, ResponseNorm):
            g = np.sqrt((x * x).sum(1, keepdims=True))
            x = x + operator.bias + operator.weight * x * g / (g.mean(2, keepdims=True) + operator.eps)
        elif isinstance(operator, Keep):
            qkv = x
        elif isinstance(operator, Attention):
            qkv = qkv if before.kept else x
            x = _attended(operator, qkv, sizes)
            stream, sizes = stream[:, : state.tokens], sizes[:, : state.tokens]
        elif isinstance(operator, Performer):
            stream, x = x[..., 2 * operator.w.shape[1] :], _performed(operator, x)
        elif isinstance(operator, Grid):
            side = math.isqrt(stream.shape[1] - operator.prefix)
            grid = stream[:, operator.prefix :].reshape(len(stream), side, side, -1)
        elif isinstance(operator, Pyramid):
            stream = np.concatenate([_convolved(conv, grid, observe) for conv in operator.convolutions], axis=-1)
            stream = stream.reshape(len(stream), -1, stream.shape[-1])
            sizes = np.ones(stream.shape[:2], stream.dtype)
        elif isinstance(operator, Branch):
            y = grid
            for conv in operator.convolutions:
                y = _convolved(conv, y, observe)
            stream = stream.copy()
            stream[:, operator.prefix :] += y.reshape(len(y), -1, y.shape[-1])
        elif isinstance(operator, Merge):
            stream, sizes = _merged(operator, stream, sizes, qkv)
        elif isinstance(operator, Unmerge):
            stream = np.stack([np.repeat(*image, axis=0) for image in zip(stream, sizes.astype(int), strict=True)])
            sizes = np.ones(stream.shape[:2], stream.dtype)
        else:
            observe(operator, x.reshape(-1, x.shape[-1]))
            x = _product(operator, x)
            if operator.adds:
                stream = stream + x
    head = program.head
    first = stream[:, 0] if head.mean_from is None else stream[:, head.mean_from :].mean(1)
    if isinstance(head, JoinedHead) and head.mean_from is not None:
        second = first if head.count is None else stream[:, head.mean_from :][:, : head.count].mean(1)
        first = np.concatenate([stream[:, 0], second], -1)
    first = first if head.norm is None else _normed(head.norm, first)
    observe(program.head.classifier, first)
    return _product(program.head.classifier, first)


def _embedded(embed: Embed, images: Floats) -> Floats:
    width, channels, patch, _ = embed.weight.shape
    across, count = embed.size // patch, len(images)
    cut = images[..., : across * patch, : across * patch].reshape(count, channels, across, patch, across, patch)
    cut = cut.transpose(0, 2, 4, 1, 3, 5)
    tokens = cut.reshape(count, across * across, -1) @ embed.weight.reshape(width, -1).T.astype(images.dtype)
    tokens = tokens + embed.bias.astype(images.dtype)
    stream = np.repeat(embed.start[None].astype(images.dtype), count, axis=0)
    stream[:, -across * across :] += _normed(embed.norm, tokens) if isinstance(embed, NormedEmbed) else tokens
    return stream


def _changed(operator: Inner, x: Floats) -> Floats:
    """What an operator on channels gives of rows (n, tokens, channels)."""
    if isinstance(operator, InnerNorm):
        count = len(operator.norm.weight)
        return np.pad(_normed(operator.norm, x[..., :count]), ((0, 0), (0, 0), (0, x.shape[-1] - count)))
    if isinstance(operator, Glu):
        gate, value = np.split(x, 2, axis=-1)
        return gate * 0.5 * (1 + np.tanh(gate / 2)) * value
    q, k, v = (np.squeeze(part, 2) for part in np.split(x.reshape(*x.shape[:2], 3, operator.heads, -1), 3, axis=2))
    if isinstance(operator, QkNorm):
        q, k = (
            _normed(replace(norm, weight=norm.weight.reshape(x.shape[2:]), bias=norm.bias.reshape(x.shape[2:])), x)
            for norm, x in ((operator.queries, q), (operator.keys, k))
        )
    else:
        q, k = (_rotated(part, operator.cos.astype(x.dtype), operator.sin.astype(x.dtype)) for part in (q, k))
    return np.stack([q, k, v], 2).reshape(x.shape)


def _depthwise(conv: Depthwise, stream: Floats) -> Floats:
    side, (_, kernel, _) = math.isqrt(stream.shape[1]), conv.weight.shape
    edge, weight = kernel // 2, conv.weight.astype(stream.dtype)
    padded = np.pad(stream.reshape(len(stream), side, side, -1), ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    taps = [(y, x) for y in range(kernel) for x in range(kernel)]
    y = sum(padded[:, y : y + side, x : x + side] * weight[:, y, x] for y, x in taps) + conv.bias.astype(stream.dtype)
    return np.asarray(y).reshape(stream.shape)


def _rotated(x: Floats, cos: Floats, sin: Floats) -> Floats:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _normed(norm: Norm, x: Floats) -> Floats:
    centred = x if isinstance(norm, RmsNorm) else x - x.mean(-1, keepdims=True)
    rate = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return centred * rate * norm.weight.astype(x.dtype) + norm.bias.astype(x.dtype)


def _product(factor: Factor, x: Floats) -> Floats:
    weight = real_weight(factor).astype(x.dtype)
    wide = np.zeros((*x.shape[:-1], max(x.shape[-1], factor.inputs.max() + 1)), x.dtype)
    wide[..., : x.shape[-1]] = x
    y = np.zeros((*x.shape[:-1], max(factor.width, factor.outputs.max() + 1)), x.dtype)
    for block, (inputs, outputs) in enumerate(zip(factor.inputs, factor.outputs, strict=True)):
        y[..., outputs] = wide[..., inputs] @ weight[block].T
    y = y[..., : factor.width] + factor.bias.astype(x.dtype)
    if factor.silu:
        return y * 0.5 * (1 + np.tanh(y / 2))
    return y * 0.5 * (1 + erf(y / math.sqrt(2))) if factor.gelu else y


def _convolved(convolution: Convolution, grid: Floats, observe: Observe) -> Floats:
    """What a convolution gives of a grid (n, side, side, channels)."""
    observe(convolution.factor, grid.reshape(-1, grid.shape[-1]))
    edge, step, across = convolution.padding, convolution.dilation, convolution.across
    padded = np.pad(grid, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    reach = convolution.stride * (across - 1) + 1
    starts = [step * tap for tap in range(convolution.kernel)]
    taps = [padded[:, y : y + reach, x : x + reach] for y in starts for x in starts]
    return _product(
        convolution.factor,
        np.concatenate([tap[:, :: convolution.stride, :: convolution.stride] for tap in taps], axis=-1),
    )


def _performed(performer: Performer, x: Floats) -> Floats:
    k, q, v = np.split(x, 3, axis=-1)
    w = performer.w.astype(x.dtype)
    of_k, of_q = (np.exp(t @ w.T - (t**2).sum(-1, keepdims=True) / 2) / math.sqrt(len(w)) for t in (k, q))
    return of_q @ (of_k.transpose(0, 2, 1) @ v) / (of_q @ of_k.sum(1)[..., None] + performer.eps)


def real_weight(factor: Factor) -> NDArray[Any]:
    """Return the weight (blocks, out, in) of inputs that are no 8-bit numbers."""
    if factor.scale is None or factor.quantiser is None:
        return factor.weight
    scale = np.append(factor.quantiser.scale, 1.0)[np.minimum(factor.inputs, len(factor.quantiser.scale))]
    return factor.weight * factor.scale[..., None] / scale[:, None]


def _heads(operator: Attention | Merge, x: Floats) -> tuple[Floats, Floats, Floats]:
    """Queries, keys and values (n, heads, tokens, head_dim)."""
    q, k, v = x.reshape(*x.shape[:2], 3, operator.heads, operator.head_dim).transpose(2, 0, 3, 1, 4)
    return q, k, v


def _softmax(q: Floats, k: Floats, sizes: Floats, bias: Floats | float = 0.0) -> Floats:
    scores: Floats = q @ k.transpose(0, 1, 3, 2)
    # In place: with a thousand tokens and more new arrays take longer than the arithmetic.
    scores += np.log2(sizes)[:, None, None] + bias
    scores -= scores.max(-1, keepdims=True)
    np.exp2(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _in_windows(attention: WindowedAttention, x: Floats) -> Floats:
    images, (count, size) = len(x), attention.windows.shape
    q, k, v = _heads(attention, x[:, attention.windows].reshape(images * count, size, -1))
    bias = attention.table.astype(x.dtype)[:, attention.index[attention.kinds]].transpose(1, 0, 2, 3)
    y = _softmax(q, k, np.ones((1, size), x.dtype), np.tile(bias, (images, 1, 1, 1))) @ v
    out = np.empty((images, count * size, q.shape[1] * q.shape[3]), x.dtype)
    out[:, attention.windows] = y.transpose(0, 2, 1, 3).reshape(images, count, size, -1)
    return out


def _attended(attention: Attention, x: Floats, sizes: Floats) -> Floats:
    if isinstance(attention, WindowedAttention):
        return _in_windows(attention, x)
    q, k, v = _heads(attention, x)
    q = q[:, :, :1] if attention.first else q
    bias: Floats | float = 0.0
    if isinstance(attention, BiasedAttention):
        bias = attention.table[:, attention.index[: q.shape[2]]].astype(x.dtype)
    y = _softmax(q, k, sizes, bias) @ v
    return y.transpose(0, 2, 1, 3).reshape(len(x), q.shape[2], -1)


def _merged(merge: Merge, stream: Floats, sizes: Floats, qkv: Floats) -> tuple[Floats, Floats]:
    """The stream and the sizes of what is left: the prefix, the first set's rest, the second set."""
    q, k, _ = _heads(merge, qkv)
    patches = stream.shape[1] - merge.prefix
    keys = k.mean(1)[:, merge.prefix :]
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    protected = merge.protect * patches * _softmax(q[:, :, :1], k, sizes).mean(1)[:, 0, merge.prefix :]
    similarity = keys[:, ::2] @ keys[:, 1::2].transpose(0, 2, 1)
    order = np.argsort(protected[:, ::2] - similarity.max(-1), axis=1, kind="stable")
    results = []
    for i, nearest in enumerate(similarity.argmax(-1)):
        gone, kept = order[i, : merge.count], np.sort(order[i, merge.count :])
        patch, size = stream[i, merge.prefix :], sizes[i, merge.prefix :]
        total, weight = patch[1::2] * size[1::2, None], size[1::2].copy()
        np.add.at(total, nearest[gone], patch[2 * gone] * size[2 * gone, None])
        np.add.at(weight, nearest[gone], size[2 * gone])
        rows = np.concatenate([stream[i, : merge.prefix], patch[2 * kept], total / weight[:, None]])
        results.append((rows, np.concatenate([sizes[i, : merge.prefix], size[2 * kept], weight])))
    streams, counts = zip(*results, strict=True)
    return np.stack(streams), np.stack(counts)
