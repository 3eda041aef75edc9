"""Recognises the structured layers of a checkpoint by their keys and shapes, the only description it has of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..layers.layer_spec import KINDS, LayerSpec
from ..layers.shapes import ButterflyShape
from .foreign_layers import LAYOUT, Parts, layer_parts, no_such_layer

_MAX_DIAGONAL = 64
"""The most blocks on a diagonal that are tried: fly's layers have 4 to 16."""


def layer_specs_in(source: str, model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, LayerSpec]:
    """Specs of the linear layers of `model` that are structured in `state`.

    Args:
        source: name of the file, for messages.
        model: a dense model, whose layers give the widths.
        state: weights in milkweed's own form, as `native_layers` gives them.

    Raises:
        CheckpointError: shapes that no structured layer of these widths has.
    """
    specs = {}
    for name, parts in layer_parts(model, state).items():
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        spec = _spec_of(f"{source}: {name}", linear, parts)
        if spec is not None:
            specs[name] = spec
    return specs


def spec_notes(specs: Mapping[str, LayerSpec]) -> list[str]:
    """Say how many layers of each kind were recognised."""
    counts = Counter(layer.kind for layer in specs.values())
    notes = [f"{count} {KINDS[kind].name} layers in the checkpoint" for kind, count in counts.items()]
    if counts["blockdiag"]:
        notes.append("a checkpoint does not say whether block-diagonal layers shuffle their input: taken as not")
    return notes


def _spec_of(where: str, linear: nn.Linear, parts: Parts) -> LayerSpec | None:
    kind = next((kind for kind, (keys, _) in _READERS.items() if keys <= parts.keys()), None)
    if kind is None or (kind == "blockdiag" and parts["weight"].dim() != 3):
        return None
    keys, read = _READERS[kind]
    weights = {key: tensor for key, tensor in parts.items() if key not in ("bias", LAYOUT)}
    shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    for spec in read(linear, parts):
        if spec.weight_shapes() == shapes:
            return spec
    raise no_such_layer(where, parts, keys, KINDS[kind].name, linear)


def _monarch(linear: nn.Linear, parts: Parts) -> Iterator[LayerSpec]:
    """fly's shapes if they fit, else q = rank * nblocks."""
    first = parts["blkdiag1"]
    if first.dim() == 3 and len(first):
        yield from _spec(linear, "monarch", {"nblocks": len(first), "rank": None})
        yield from _spec(linear, "monarch", {"nblocks": len(first), "rank": first.shape[1] // len(first)})


def _lowrank(linear: nn.Linear, parts: Parts) -> Iterator[LayerSpec]:
    if parts["lr_weight1"].dim() == 2:
        yield from _spec(linear, "lowrank", {"rank": len(parts["lr_weight1"])})


def _blockdiag(linear: nn.Linear, parts: Parts) -> Iterator[LayerSpec]:
    yield from _spec(linear, "blockdiag", {"nblocks": len(parts["weight"])})


def _pixelfly(linear: nn.Linear, parts: Parts) -> Iterator[LayerSpec]:
    """The butterfly with fly's layout; without a layout, the one with as many blocks, where only one has so many."""
    blocks, layout, thin = parts["sparse.weight"], parts.get(LAYOUT), parts.get("low_rank.lr_weight1")
    if blocks.dim() != 3 or (thin is not None and thin.dim() != 2):
        return
    if layout is None:
        shape = _only(_butterflies(linear, blocks.shape[2]), len(blocks))
    else:
        shapes = (*_butterflies(linear, blocks.shape[2]), *_with_global(linear, blocks.shape[2], layout))
        shape = next((shape for shape in shapes if _equal(shape.layout(), layout)), None)
    if shape is not None:
        sizes = {name: getattr(shape, name) for name in ("block_size", "butterfly_size", "n_factors", "global_size")}
        rank = 0 if thin is None else len(thin)
        yield from _spec(linear, "pixelfly", {**sizes, "rank": rank, "gating": "gate.weight" in parts})


def _only(shapes: Iterator[ButterflyShape], count: int) -> ButterflyShape | None:
    """The first shape with `count` blocks, where all that have so many have the same layout."""
    fitting = [(shape, layout) for shape in shapes if int((layout := shape.layout()).sum()) == count]
    alike = fitting and all(torch.equal(layout, fitting[0][1]) for _, layout in fitting)
    return fitting[0][0] if alike else None


def _butterflies(linear: nn.Linear, block_size: int) -> Iterator[ButterflyShape]:
    """Every butterfly of a layer with blocks of that side, the smallest first."""
    butterfly_size = 2
    while butterfly_size <= min(linear.in_features, linear.out_features) + block_size:
        for n_factors in range(1, butterfly_size.bit_length()):
            try:
                yield ButterflyShape.of(linear.in_features, linear.out_features, block_size, butterfly_size, n_factors)
            except ValueError:
                break
        butterfly_size *= 2


def _with_global(linear: nn.Linear, block_size: int, layout: Tensor) -> Iterator[ButterflyShape]:
    """Butterflies and block-diagonal matrices, each with the global rows and columns that the layout begins with."""
    if layout.dim() != 2:
        return
    full = min(int((layout != 0).all(dim).int().cumprod(0).sum()) for dim in (0, 1))
    for global_size in sorted({0, min(full * block_size, linear.in_features, linear.out_features)}):
        for shape in _butterflies(linear, block_size):
            yield replace(shape, global_size=global_size)
        for nblocks in range(2, min(max(layout.shape), _MAX_DIAGONAL) + 1):
            with suppress(ValueError):
                sizes = (block_size, nblocks, 0, global_size)
                yield ButterflyShape.of(linear.in_features, linear.out_features, *sizes)


def _equal(mask: Tensor, layout: Tensor) -> bool:
    return mask.shape == layout.shape and torch.equal(mask, layout.to(mask.device).bool())


def _spec(linear: nn.Linear, kind: str, options: dict[str, int | None]) -> Iterator[LayerSpec]:
    """The spec with these options, where they are within their limits."""
    try:
        bias = linear.bias is not None
        yield LayerSpec(kind, linear.in_features, linear.out_features, bias=bias, **options)  # type: ignore[arg-type]
    except ValueError:
        return


_READERS: Mapping[str, tuple[frozenset[str], Callable[[nn.Linear, Parts], Iterator[LayerSpec]]]] = {
    "monarch": (frozenset({"blkdiag1", "blkdiag2"}), _monarch),
    "lowrank": (frozenset({"lr_weight1", "lr_weight2"}), _lowrank),
    "pixelfly": (frozenset({"sparse.weight"}), _pixelfly),
    "blockdiag": (frozenset({"weight"}), _blockdiag),
}
"""For each kind: the keys that show it, and the function that reads specs off their shapes."""
