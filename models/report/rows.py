"""Counts a model's layers and totals for a report: with every layer dense, and as the model is now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..accounting import dense_equivalent_bytes, dense_equivalent_parameters, layer_accounts, macs
from ..bundle.storage import stored_tensors
from ..layers.structured import StructuredLinear
from .document import LayerRow, RunReport, Totals


def layer_rows(model: nn.Module, size: int, notes: Mapping[str, Mapping[str, Any]]) -> tuple[LayerRow, ...]:
    """A row for every linear layer, in the model's order.

    Args:
        size: side of the model's images, px.
        notes: by layer, what the model does not say: `reason`, `error`, `sensitivity`.
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


def written_bytes(report: RunReport, model: nn.Module, storage: Mapping[str, str], bytes_on_disk: int) -> RunReport:
    """The report with the bytes of its layers as the file holds them, scales included, and of the written bundle.

    Before, it would have had as much beside its weights.

    Args:
        model: the model of the report, in float32.
        storage: precision by layer, as `save_bundle` takes it.
    """
    tensors, before, after = stored_tensors(model, storage), report.totals_before, report.totals_after
    others = bytes_on_disk - sum(tensor.nbytes for tensor in tensors.values())

    def held(name: str) -> int:
        keys = (key for key in tensors if key.startswith(f"{name}.") and key != f"{name}.bias")
        return sum(tensors[key].nbytes for key in keys)

    assert before is not None
    assert after is not None
    return replace(
        report,
        layers=tuple(replace(row, bytes_after=held(row.name)) for row in report.layers),
        totals_before=replace(before, bytes=before.bytes + others),
        totals_after=replace(after, bytes=bytes_on_disk),
    )
