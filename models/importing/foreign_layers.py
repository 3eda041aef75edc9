"""Converts structured layers of other codebases to the forms that milkweed has, exactly."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, gcd

import torch
from torch import Tensor, nn

from ...kernels.reference import monarch_to_dense
from ..errors import CheckpointError
from ..layers.select import replaceable_linears

LAYOUT = "sparse.layout"
"""Key of fly's buffer that says which blocks a Pixelfly layer keeps. It is checked and then left out."""

Parts = dict[str, Tensor]
"""A layer's tensors, by the rest of their keys behind the layer's name."""


def layer_parts(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Parts]:
    """The tensors of each replaceable linear layer and of its submodules: `<layer>.<rest>` in `state`."""
    parts: dict[str, Parts] = {name: {} for name in replaceable_linears(model)}
    for key, tensor in state.items():
        pieces = key.split(".")
        for cut in (len(pieces) - 1, len(pieces) - 2):
            if (name := ".".join(pieces[:cut])) in parts:
                parts[name][".".join(pieces[cut:])] = tensor
    return parts


def native_layers(source: str, model: nn.Module, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The state with every linear layer's tensors in milkweed's own form, and notes for a person on what was converted.

    Args:
        source: name of the file, for messages.
        model: a dense model with the checkpoint's widths.

    Raises:
        CheckpointError: keys are those of a known form, but shapes do not fit the layer's widths.
    """
    result, counts = dict(state), Counter[str]()
    for name, parts in layer_parts(model, state).items():
        form = next((form for form in _FORMS if form.fits(parts)), None)
        if form is None:
            continue
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        native = form.convert(linear, parts)
        if native is None:
            raise no_such_layer(f"{source}: {name}", parts, form.keys, form.name, linear)
        for key in form.keys | form.optional:
            result.pop(f"{name}.{key}", None)
        result |= {f"{name}.{key}": tensor for key, tensor in native.items()}
        if any(parts.get(key) is not tensor for key, tensor in native.items()):
            counts[_DENSE.format(form.name) if "weight" in native else form.note or f"in the form of {form.name}"] += 1
    return result, [f"{count} layers {note}" for note, count in counts.items()]


def no_such_layer(where: str, parts: Parts, keys: frozenset[str], kind: str, linear: nn.Linear) -> CheckpointError:
    """The refusal of tensors under the keys of a kind of layer whose shapes are not that kind's."""
    shapes = " and ".join(f"{key} {list(parts[key].shape)}" for key in sorted(keys))
    widths = f"{linear.in_features} inputs and {linear.out_features} outputs"
    return CheckpointError(f"{where}.{shapes} are no {kind} layer of {widths}")


@dataclass(frozen=True)
class _Form:
    """The form that a structured layer has in another codebase.

    Args:
        name: name of the form in messages.
        keys: keys that must be there, and are replaced.
        convert: computes the tensors that replace them; gives None where their shapes do not fit.
        optional: keys that may be there, and are replaced.
        beside: keys that must be there, and stay.
        without: keys that must not be there.
        note: what the import report says of such layers, where the form's name alone does not say enough.
    """

    name: str
    keys: frozenset[str]
    convert: Callable[[nn.Linear, Parts], Parts | None]
    optional: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    note: str = ""

    def fits(self, parts: Parts) -> bool:
        return self.keys | self.beside <= parts.keys() and not self.without & parts.keys()


def _blast(linear: nn.Linear, parts: Parts) -> Parts | None:
    """BLAST's own Monarch layers (arXiv 2410.21262, 2512.20861): fly's factors of any rank, under other names."""
    w1, w2 = parts["w1"], parts["w2"]
    return {"blkdiag1": w1, "blkdiag2": w2} if w1.dim() == w2.dim() == 3 else None


def _butterfly(linear: nn.Linear, parts: Parts) -> Parts | None:
    """fly's BlockdiagButterflyLinear: rows of w1 are ordered (block of w2, rank), ours (rank, block of w2)."""
    w1, w2 = parts["w1_bfly"], parts["w2_bfly"]
    if w1.dim() != 3 or w2.dim() != 3 or not len(w2) or w1.shape[1] % len(w2):
        return None
    blocks, rank = len(w2), w1.shape[1] // len(w2)
    if w2.shape[2] != len(w1) * rank:
        return None
    w1 = w1.unflatten(1, (blocks, rank)).transpose(1, 2).flatten(1, 2)
    if len(w1) == blocks:
        return {"blkdiag1": w1.contiguous(), "blkdiag2": w2}
    if (len(w1) * w1.shape[2], blocks * w2.shape[1]) != (linear.in_features, linear.out_features):
        return None
    return {"weight": monarch_to_dense(w1, w2)}


def _cola(linear: nn.Linear, parts: Parts) -> Parts | None:
    """Factors of compute-better-spent (arXiv 2406.06248): Monarch ones as fly's, or BTT of any rank.

    BTT: y[v*n + u] = sum over k, i, t of A[k, i, v*r + t] B[v, k*r + t, u] x[k*p + i]: like Monarch, but each block of
    B writes outputs that lie together.
    """
    first, second = parts["op_params.0"], parts["op_params.1"]
    if first.dim() != 3 or second.dim() != 3 or not len(first) or not len(second):
        return None
    bias = {"bias": parts["b"]} if "b" in parts else {}
    N = len(first)
    p, s = ceil(linear.in_features / N), ceil(linear.out_features / N)
    monarch = len(second) == N and first.shape[2] == p and second.shape[1:] == (s, first.shape[1])
    rank = first.shape[2] // len(second)
    widths = (N * first.shape[1], len(second) * second.shape[2])
    btt = widths == (linear.in_features, linear.out_features) and second.shape[1] == N * rank
    if monarch == (btt and first.shape[2] == rank * len(second)):
        return None  # neither, or not to be told apart
    if monarch:
        return {"blkdiag1": first, "blkdiag2": second, **bias}
    A, B = first.unflatten(2, (len(second), rank)), second.unflatten(1, (N, rank))
    return {"weight": torch.einsum("kivt,vktu->vuki", A, B).flatten(2).flatten(0, 1), **bias}


def _block_sparse(linear: nn.Linear, parts: Parts) -> Parts | None:
    """fly's BlockSparseLinear: a flat butterfly without a low-rank part."""
    return _with_blocks(parts["weight"], parts["layout"])


def _with_blocks(weight: Tensor, layout: Tensor) -> Parts | None:
    """Kept blocks (n, b, b) of fly's backends: Triton's have one dimension more, Hugging Face's lie transposed."""
    count = int(layout.count_nonzero())
    if weight.dim() == 4 and len(weight) == 1:
        weight = weight[0]
    elif weight.dim() == 2 and count * weight.shape[1] == weight.shape[0]:
        weight = weight.view(count, weight.shape[1], weight.shape[1]).transpose(1, 2).contiguous()
    return {"sparse.weight": weight, LAYOUT: layout} if weight.dim() == 3 else None


def _sparse_low_rank(linear: nn.Linear, parts: Parts) -> Parts | None:
    return _with_blocks(parts["sparse.weight"], parts[LAYOUT])


def _blockdiag_low_rank(linear: nn.Linear, parts: Parts) -> Parts | None:
    """fly's block-diagonal matrix beside a low-rank one: a Pixelfly layer without factors beside the diagonal."""
    weight = parts["sparse.weight"]
    if weight.dim() != 3:
        return None
    N, s, p = weight.shape
    if (s, p) != (ceil(linear.out_features / N), ceil(linear.in_features / N)):
        return {"sparse.weight": weight}  # blocks of a butterfly, whose layout is not there
    side = gcd(s, p)
    blocks = weight.unflatten(2, (p // side, side)).unflatten(1, (s // side, side)).transpose(2, 3)
    layout = torch.block_diag(*torch.ones(N, s // side, p // side)).int()
    return {"sparse.weight": blocks.reshape(-1, side, side), LAYOUT: layout}


def _monarch_low_rank(linear: nn.Linear, parts: Parts) -> Parts | None:
    """fly's Monarch matrix beside a low-rank one: dense blocks, as a Pixelfly layer that keeps all of them."""
    rows, columns = linear.out_features, linear.in_features
    try:
        dense = monarch_to_dense(parts["sparse.blkdiag1"], parts["sparse.blkdiag2"], rows, columns)
    except ValueError:
        return None
    side = gcd(rows, columns)
    if rows % 2 or columns % 2:
        side = min(rows, columns) // 2 * 2  # a butterfly of two cells divides the padded widths then
    if not side:
        return None
    shape = (ceil(rows / side), ceil(columns / side))
    padded = dense.new_zeros(shape[0] * side, shape[1] * side)
    padded[:rows, :columns] = dense
    blocks = padded.view(shape[0], side, shape[1], side).transpose(1, 2).reshape(-1, side, side)
    return {"sparse.weight": blocks, LAYOUT: torch.ones(shape, dtype=torch.int32)}


_DENSE = "in the form of {} are dense now: milkweed has no layer of such an order of inputs and outputs"
_LOW_RANK = frozenset({"low_rank.lr_weight1", "low_rank.lr_weight2"})
_FORMS = (
    _Form("BLAST's Monarch matrices", frozenset({"w1", "w2"}), _blast),
    _Form("fly's BlockdiagButterflyLinear", frozenset({"w1_bfly", "w2_bfly"}), _butterfly),
    _Form("compute-better-spent's matrices", frozenset({"op_params.0", "op_params.1"}), _cola, frozenset({"b"})),
    _Form("fly's block-sparse matrices", frozenset({"weight", "layout"}), _block_sparse),
    _Form("Pixelfly", frozenset({"sparse.weight", LAYOUT}), _sparse_low_rank),
    _Form(
        "a block-diagonal and a low-rank matrix",
        frozenset({"sparse.weight"}),
        _blockdiag_low_rank,
        beside=_LOW_RANK,
        without=frozenset({LAYOUT}),
    ),
    _Form(
        "a Monarch and a low-rank matrix",
        frozenset({"sparse.blkdiag1", "sparse.blkdiag2"}),
        _monarch_low_rank,
        beside=_LOW_RANK,
        note="have a Monarch and a low-rank matrix: the Monarch one is kept as dense blocks, exact but not small",
    ),
)
