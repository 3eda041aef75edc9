"""The sections of rows: each returns what measures a unit, named `section/shape/batch/round`, and writes its rows."""

from collections.abc import Callable, Iterable

import torch

from ..child import Measure, Task
from ..journal import Record, Writer, rows
from .bench import Bench, bench_of
from .shapes import attention_shape, mlp_shape

Rows = Callable[[str, int, Bench], Iterable[Record]]


def mlp(task: Task, writer: Writer) -> Measure:
    """Return what measures the MLP of a shape and batch."""
    from .mlp import mlp_rows

    return _section(task, writer, lambda name, batch, bench: mlp_rows(mlp_shape(name), batch, bench))


def attention(task: Task, writer: Writer) -> Measure:
    """Return what measures the attention of a shape and batch."""
    from .attention import attention_rows

    return _section(task, writer, lambda name, batch, bench: attention_rows(attention_shape(name), batch, bench))


def cells(task: Task, writer: Writer) -> Measure:
    """Return what measures the parts of ViTAE's cells at a batch."""
    from .cells import cell_rows, parts

    return _section(task, writer, lambda name, batch, b: (r for p in parts(name, b) for r in cell_rows(p, batch, b)))


def forward(task: Task, writer: Writer) -> Measure:
    """Return what measures an architecture and batch: the dense model, beside each way to have Monarch layers."""
    from .forward import forward_rows

    return _section(task, writer, lambda n, batch, b: forward_rows(n, batch, b, rows(writer.journal.read())))


def _section(task: Task, writer: Writer, make: Rows) -> Measure:
    bench = bench_of(task, writer)

    @torch.inference_mode()
    def measure_unit(unit: str) -> None:
        _, name, batch, turn = unit.split("/")
        for row in make(name, int(batch), bench):
            writer({**row, "unit": unit, "round": int(turn.removeprefix("r"))})

    return measure_unit
