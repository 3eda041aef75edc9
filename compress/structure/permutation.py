"""Arranges the hidden units of an MLP so that its Monarch layers fit better: the dense function stays the same.

Between fc1 and fc2 lies an activation that treats every unit alike, so units may change places. A Monarch fc1
with N blocks shares its right factors among the units of one residue mod N, and a Monarch fc2 reads the units in
N contiguous chunks. Units are clustered by what fc1 computes (rows of W C^(1/2)) for the residues, and by how
they vary together for the chunks, each by recursive bisection along the leading direction, so that one
arrangement serves 2, 4 and 8 blocks. An arrangement is kept only where both layers' measured errors together
fall.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...models.architectures.plain_mlp import plain_mlp
from ...models.progress import Count, ignore
from ...models.projection.layer_fit import monarch_objective
from ...models.projection.parallel import each_on_one_thread
from ...models.projection.statistics import InputStatistics

LEAST_GAIN = 0.01
"""The units stay where they are unless the errors fall by this part."""

SWEEPS = 2
DIRECTIONS = 32
"""The number of leading directions of the units' correlations that they are clustered by."""

MAX_GROUPS = 8


def arrangeable_mlps(model: nn.Module, statistics: Mapping[str, InputStatistics], nblocks: int) -> list[str]:
    """MLPs of two dense layers whose inputs are known, with nothing but an element-wise activation between."""
    return [
        name
        for name, module in model.named_modules()
        if _is_mlp(module)
        and {f"{name}.fc1", f"{name}.fc2"} <= set(statistics)
        and _linear(module, "fc1").out_features % (MAX_GROUPS * nblocks) == 0
        and _linear(module, "fc1").in_features % nblocks == 0
        and _linear(module, "fc2").out_features % nblocks == 0
    ]


def arrange_hidden_units(
    model: nn.Module,
    statistics: Mapping[str, InputStatistics],
    nblocks: int,
    progress: Count = ignore,
) -> dict[str, Tensor]:
    """Rearrange the hidden units of `model`'s MLPs in place, where that lowers their errors.

    Args:
        statistics: statistics of the linear layers' inputs, in the order of the units before.
        nblocks: the block count at which errors are compared.

    Returns:
        The order, int64 (hidden,), of each MLP whose units moved; place i holds the unit that was at order[i].
    """
    mlps = arrangeable_mlps(model, statistics, nblocks) if nblocks > 1 else []
    orders = each_on_one_thread(lambda name: _best_order(model, name, statistics, nblocks), mlps, progress=progress)
    moved = {name: order for name, order in zip(mlps, orders, strict=True) if order is not None}
    for name, order in moved.items():
        move_units(model.get_submodule(name), order)
    return moved


def move_units(mlp: nn.Module, order: Tensor) -> None:
    """Move the hidden units, which are rows and bias of fc1 and columns of fc2."""
    fc1, fc2 = _linear(mlp, "fc1"), _linear(mlp, "fc2")
    with torch.no_grad():
        fc1.weight.copy_(fc1.weight[order].clone())
        if fc1.bias is not None:
            fc1.bias.copy_(fc1.bias[order].clone())
        fc2.weight.copy_(fc2.weight[:, order].clone())


def permuted(statistics: InputStatistics, order: Tensor) -> InputStatistics:
    """Statistics of inputs in another order."""
    return InputStatistics(
        statistics.mean[order], statistics.covariance[order][:, order].contiguous(), statistics.tokens
    )


def _best_order(model: nn.Module, name: str, statistics: Mapping[str, InputStatistics], nblocks: int) -> Tensor | None:
    """The order of an MLP's units with the least errors of both layers together; None where little is gained."""
    mlp = model.get_submodule(name)
    W1, W2 = (_linear(mlp, part).weight.detach().cpu() for part in ("fc1", "fc2"))
    in1, in2 = statistics[f"{name}.fc1"], statistics[f"{name}.fc2"]

    def objective(order: Tensor) -> float:
        parts = (W1[order], in1), (W2[:, order], permuted(in2, order))
        return sum(monarch_objective(weight, inputs, nblocks, sweeps=SWEEPS) for weight, inputs in parts)

    as_it_is = torch.arange(W1.shape[0])
    before = objective(as_it_is)
    residues = _tree(_computed(W1, in1), MAX_GROUPS)
    chunks = torch.cat(_tree(_varying(in2), MAX_GROUPS))
    tried = [
        _dealt(as_it_is.tensor_split(MAX_GROUPS), residues),  # chunks stay whole, residues nearly
        _interleaved(as_it_is, residues),  # residues whole, chunks nearly
        _interleaved(chunks, residues),
    ]
    after, best = min(((objective(order), place) for place, order in enumerate(tried)))
    return tried[best] if after < (1 - LEAST_GAIN) * before else None


def _computed(weight: Tensor, inputs: InputStatistics) -> Tensor:
    """The direction that each unit computes, (hidden, in): rows of W C^(1/2), of length 1."""
    values, vectors = torch.linalg.eigh(inputs.covariance)
    rows = weight.double() @ (vectors * values.clamp_min(0).sqrt())
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)


def _varying(inputs: InputStatistics) -> Tensor:
    """Each unit's coordinates in the leading directions of the correlations: how it varies with the others."""
    scale = inputs.covariance.diagonal().clamp_min(1e-300).sqrt()
    values, vectors = torch.linalg.eigh(inputs.covariance / scale.outer(scale))
    return vectors[:, -DIRECTIONS:] * values[-DIRECTIONS:].clamp_min(0).sqrt()


def _tree(points: Tensor, groups: int, members: Tensor | None = None) -> tuple[Tensor, ...]:
    """Equal groups of (n, d) points by recursive bisection along the leading direction; similar ones are near."""
    members = torch.arange(len(points)) if members is None else members
    if groups == 1:
        return (members,)
    centred = points[members] - points[members].mean(0)
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    order = members[(centred @ vectors[:, -1]).argsort(stable=True)]
    half = len(order) // 2
    return (*_tree(points, groups // 2, order[:half]), *_tree(points, groups // 2, order[half:]))


def _dealt(chunks: tuple[Tensor, ...], residues: tuple[Tensor, ...]) -> Tensor:
    """The order with the chunks one after the other, and each chunk's units dealt to residues by their group."""
    leaf = torch.empty(sum(map(len, residues)), dtype=torch.long)
    for place, members in enumerate(residues):
        leaf[members] = place
    groups = len(residues)
    by_leaf = [chunk[leaf[chunk].argsort(stable=True)].view(groups, -1) for chunk in chunks]
    return torch.cat([_spread(tuple(groups_of_chunk)) for groups_of_chunk in by_leaf])


def _interleaved(order: Tensor, residues: tuple[Tensor, ...]) -> Tensor:
    """The order with every group on one residue, its units as they come in `order`."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return _spread(tuple(members[place[members].argsort()] for members in residues))


def _spread(groups: tuple[Tensor, ...]) -> Tensor:
    """Equal groups in turns, group g on the residue that is g with its bits reversed.

    Units that part at the tree's first bisection then have different residues mod 2 already, those that part at
    the second mod 4, and so on.
    """
    bits = len(groups).bit_length() - 1
    spread = torch.empty(len(groups[0]), len(groups), dtype=torch.long)
    for place, members in enumerate(groups):
        spread[:, int(format(place, f"0{bits}b")[::-1], 2)] = members
    return spread.reshape(-1)


def _is_mlp(module: nn.Module) -> bool:
    fc1, act, fc2 = plain_mlp(module) or (None, None, None)
    return isinstance(fc1, nn.Linear) and isinstance(fc2, nn.Linear) and isinstance(act, nn.GELU | nn.ReLU | nn.SiLU)


def _linear(module: nn.Module, name: str) -> nn.Linear:
    linear = module.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return linear
