"""The quantisation that a search goes on with, and what is quantised."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from milkweed.jobs.search import search
from milkweed.jobs.search.front import Measured, Target
from milkweed.jobs.search.levers import Bits, Levers
from milkweed.jobs.search.runs import Runs
from milkweed.models import create_model
from milkweed.models.onnx.file import write_onnx
from milkweed.models.progress import SILENT
from milkweed.models.report.frontier import Interval, Quality

from ...models.tiny import TINY_VITAE

WHOLE, LINEARS, SMOOTH = Bits(), Bits(convolutions=False), Bits(0.5)
Case = dict[Bits | None, tuple[float, float]]


def measured(ms: float, kl: float) -> Measured:
    one = Interval(kl, kl, kl)
    return Measured("", Quality(250, one, one, one, None), {1: ms, 8: ms / 2}, 100, "")


@pytest.mark.parametrize(
    ("found", "chosen", "tried"),
    [
        ({None: (10, 0), WHOLE: (7, 0.005), LINEARS: (8, 0.004)}, WHOLE, [WHOLE, LINEARS]),
        ({None: (10, 0), WHOLE: (11, 0.005), LINEARS: (8, 0.004)}, LINEARS, [WHOLE, LINEARS]),
        ({None: (6, 0), WHOLE: (7, 0.005), LINEARS: (6.1, 0.004)}, None, [WHOLE, LINEARS]),
        ({None: (10, 0), WHOLE: (7, 0.5), LINEARS: (8, 0.4), SMOOTH: (9, 0.01)}, SMOOTH, [WHOLE, LINEARS, SMOOTH]),
        ({None: (10, 0), WHOLE: (7, 0.5), LINEARS: (7, 0.4), SMOOTH: (7, 0.6)}, LINEARS, [WHOLE, LINEARS, SMOOTH]),
        ({None: (10, 0)}, None, [WHOLE, LINEARS, SMOOTH]),  # nothing could be quantised
    ],
)
def test_the_fastest_that_loses_little_is_taken(found: Case, chosen: Bits | None, tried: Sequence[Bits]) -> None:
    asked, taken = bits_of(found, nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), Target(speedup=2))
    assert (taken, asked) == (chosen, tried)


def test_for_bytes_float_is_no_choice_however_fast() -> None:
    found: Case = {None: (1, 0), WHOLE: (7, 0.005)}
    assert bits_of(found, nn.Conv2d(3, 8, 3), Target(bytes=100)) == ([WHOLE], WHOLE)  # one convolution is the patches'


def bits_of(found: Case, model: nn.Module, target: Target) -> tuple[list[Bits], Bits | None]:
    """The quantisations that were measured, and the one that was taken."""
    asked: list[Any] = []
    stub: Any = SimpleNamespace(
        subject=SimpleNamespace(model=model),
        job=SimpleNamespace(target=target),
        runs=SimpleNamespace(dense=measured(20, 0)),
        progress=SILENT,
        _measure=lambda levers: asked.append(levers.bits),
        _found=lambda levers: [measured(*found[levers.bits])] if levers.bits in found else [],
    )
    return asked, search.Search._bits(stub, Levers())


@pytest.mark.parametrize("bits", [WHOLE, LINEARS])
def test_convolutions_stay_float_where_linears_alone_are_quantised(bits: Bits, tmp_path: Path) -> None:
    pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
    torch.manual_seed(0)
    model = create_model("vitae_basic", num_classes=5, **TINY_VITAE).eval()
    images = torch.randn(32, 3, 32, 32)
    write_onnx(model, tmp_path / "dense.onnx", images[:2])
    runs: Any = object.__new__(Runs)
    runs._graphs, runs.progress = tmp_path, SILENT
    runs.model = lambda levers: model
    runs.subject = SimpleNamespace(fit=SimpleNamespace(pixels=images))
    graph = onnx.load(runs.graph_file(Levers(bits=bits))).graph
    quantised = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    for kind, expected in (("Conv", bits.convolutions), ("MatMul", True)):
        nodes = [node for node in graph.node if node.op_type == kind]
        assert nodes
        assert any(quantised & set(node.input) for node in nodes) is expected
