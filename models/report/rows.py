"""A model's layers and totals as a report shows them: before, with every layer dense, and as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..accounting import dense_equivalent_bytes, dense_equivalent_parameters, layer_accounts, macs
from ..structured import StructuredLinear
from .document import LayerRow, Totals


@dataclass(frozen=True, kw_only=True)
class LayerNote:
    """What is known of a layer beside its shape; as in `LayerRow`."""

    reason: str = ""
    error: float | None = None
    sensitivity: float | None = None
    latency_before_us: float | None = None
    latency_after_us: float | None = None


def layer_rows(model: nn.Module, size: int, notes: Mapping[str, LayerNote]) -> tuple[LayerRow, ...]:
    """Every linear layer, in the model's order.

    Args:
        size: side of the model's images, px.
        notes: by layer; a layer without one has no reason.
    """
    rows = []
    for account in layer_accounts(model, size):
        layer = model.get_submodule(account.name)
        dense_weights = account.in_features * account.out_features
        structured = isinstance(layer, StructuredLinear)
        weights = layer.weight_count if isinstance(layer, StructuredLinear) else dense_weights
        item = next(layer.parameters()).element_size()
        note = notes.get(account.name, LayerNote())
        rows.append(
            LayerRow(
                name=account.name,
                kind=account.kind,
                in_features=account.in_features,
                out_features=account.out_features,
                nblocks=getattr(layer, "nblocks", None) if structured else None,
                rank=getattr(layer, "rank", None) if structured else None,
                dense_weights=dense_weights,
                weights=weights,
                macs_before=account.dense_macs,
                macs_after=account.macs,
                bytes_before=item * dense_weights,
                bytes_after=item * weights,
                latency_before_us=note.latency_before_us,
                latency_after_us=note.latency_after_us,
                error=note.error,
                sensitivity=note.sensitivity,
                reason=note.reason,
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
