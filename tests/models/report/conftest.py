"""Reports as a search and a training of DeiT-Tiny would give them, and one that holds nothing but what it must."""

import random
from dataclasses import replace
from math import exp

import pytest

from milkweed.models.report import DataUse, Frontier, LayerRow, Measured, RunReport, Skipped, Totals, write_report

from ...support.frontiers import record

WIDTHS = {"attn.qkv": (192, 576), "attn.proj": (192, 192), "mlp.fc1": (192, 768), "mlp.fc2": (768, 192)}


def layer(block: int, part: str, rng: random.Random) -> LayerRow:
    inputs, outputs = WIDTHS[part]
    dense = inputs * outputs
    kept = part == "attn.proj" and block in (0, 11)
    weights = dense if kept else dense * 5 // 8
    return LayerRow(
        name=f"blocks.{block}.{part}",
        kind="dense" if kept else "monarch",
        in_features=inputs,
        out_features=outputs,
        nblocks=None if kept else 2,
        rank=None if kept else 48,
        dense_weights=dense,
        weights=weights,
        macs_before=197 * dense,
        macs_after=197 * weights,
        bytes_before=4 * dense,
        bytes_after=4 * weights,
        error=None if kept else rng.uniform(0.05, 0.4),
        reason="reacts most of all" if kept else "Monarch, 65 % of ms in mlp",
    )


def step(number: int) -> dict[str, float | int | str | None]:
    row: dict[str, float | int | str | None] = {"step": number, "phase": "train", "loss": exp(-number / 20)}
    return row | ({"top1": 60 + number / 10} if number % 20 == 19 else {})


@pytest.fixture(scope="session")
def full() -> RunReport:
    """48 layers, the models of a search, images skipped."""
    rng = random.Random(0)
    return RunReport(
        kind="compress",
        arch="deit_tiny_patch16_224",
        version="3f2a91c04b7d",
        input_version="a0b1c2d3e4f5",
        arguments={"layers": ["mlp", "qkv"], "nblocks": 1, "rank": None, "permute": True, "plan": {"lr": 3e-4}},
        command="milkweed compress ./deit ./deit-fast --images photos --speedup 3",
        measured_on="CPU, 1 thread, float32, batches of 8",
        versions={"torch": "2.10.0"},
        seconds_by_step={"reading": 12.4, "search": 733.0},
        data=(
            DataUse(
                role="calibration",
                folder="photos",
                images=248,
                skipped=(Skipped(image="a/b.jpg", code="undecodable", message="truncated"),),
            ),
            DataUse(role="held out", folder="held", images=250),
        ),
        before=Measured(top1=81.2, top5=95.2, agreement=100.0, kl=0.0, images=250),
        after=Measured(top1=74.4, top5=92.8, agreement=84.0, kl=0.231, images=250),
        totals_before=Totals(parameters=5_717_416, macs=1_258_000_000, bytes=22_869_664, latency_ms=18.2),
        totals_after=Totals(parameters=3_716_320, macs=818_000_000, bytes=14_865_280, latency_ms=13.0),
        layers=tuple(layer(block, part, rng) for block in range(12) for part in WIDTHS),
        frontier=Frontier.from_dict(record(images=250)),
        warnings=("4 layers keep their number of weights",),
    )


@pytest.fixture(scope="session")
def trained(bare: RunReport) -> RunReport:
    """The course of a training, with an evaluation at every twentieth step."""
    return replace(bare, history=tuple(step(number) for number in range(120)))


@pytest.fixture(scope="session")
def bare() -> RunReport:
    """The training of a dense model of which nothing was measured."""
    return RunReport(kind="train", arch="vitae_basic", version="0123456789ab")


@pytest.fixture(scope="session")
def files(full: RunReport) -> dict[str, bytes]:
    """What is written of `full`."""
    return write_report(full)


@pytest.fixture(scope="session")
def page(files: dict[str, bytes]) -> str:
    """The page of `full`."""
    return files["report.html"].decode()
