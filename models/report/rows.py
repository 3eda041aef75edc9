"""Counts a model's layers and totals for a report: with every layer dense, and as the model is now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..accounting import dense_equivalent_bytes, dense_equivalent_parameters, layer_accounts, macs
from ..layers.structured import StructuredLinear
from .document import LayerRow, Totals


def layer_rows(model: nn.Module, size: int, notes: Mapping[str, Mapping[str, Any]]) -> tuple[LayerRow, ...]:
    """A row for every linear layer, in the model's order.

    Args:
        size: side of the model's images, px.
        notes: by layer, what the model does not say: `reason`, `error`.
    """
    rows = []
    for account in layer_accounts(model, size):
        layer = model.get_submodule(account.name)
        dense_weights = account.in_features * account.out_features
        weights = layer.weight_count if isinstance(layer, StructuredLinear) else dense_weights
        item = next(layer.parameters()).element_size()
        rows.append(
            LayerRow(
                name=account.name,
                kind=account.kind,
                in_features=account.in_features,
                out_features=account.out_features,
                nblocks=getattr(layer, "nblocks", None),
                rank=getattr(layer, "rank", None),
                dense_weights=dense_weights,
                weights=weights,
                macs_before=account.dense_macs,
                macs_after=account.macs,
                bytes_before=item * dense_weights,
                bytes_after=item * weights,
                **notes.get(account.name, {}),
            )
        )
    return tuple(rows)


def model_totals(model: nn.Module, size: int) -> tuple[Totals, Totals]:
    """Costs of the model with every layer dense, and as it is."""
    counted = macs(model, size)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    dense = Totals(
        parameters=dense_equivalent_parameters(model),
        macs=counted.dense_equivalent,
        bytes=dense_equivalent_bytes(model),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return dense, Totals(parameters=parameters, macs=counted.total, bytes=stored)


def written_totals(model: nn.Module, size: int, bytes_on_disk: int) -> tuple[Totals, Totals]:
    """`model_totals` of a float32 model with the bytes of its bundle; dense, that would have as much beside weights."""
    dense, written = model_totals(model, size)
    others = bytes_on_disk - sum(tensor.nbytes for tensor in model.state_dict().values())
    return replace(dense, bytes=dense.bytes + others), replace(written, bytes=bytes_on_disk)
