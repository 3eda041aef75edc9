"""A report as a run on DeiT-Tiny would give it, and one that holds nothing but what it must."""

import random
from math import exp

import pytest

from milkweed.models.report import CurvePoint, DataUse, LayerRow, Measured, RunReport, Skipped, Totals, write_report

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
        latency_before_us=dense / 1000,
        latency_after_us=weights / 1000,
        error=None if kept else rng.uniform(0.05, 0.4),
        sensitivity=rng.uniform(0.001, 0.05),
        reason="reacts most of all" if kept else "least KL for what it saves",
    )


def candidate(number: int, rng: random.Random) -> CurvePoint:
    share = 0.3 + 0.7 * number / 30
    return CurvePoint(
        label=f"budget {share:.2f}",
        share=share,
        parameters=round(5.7e6 * share),
        kl=4 * exp(-6 * (share - 0.3)) * rng.uniform(0.8, 1.6),
        agreement=90 * share,
        top1=80 * share * rng.uniform(0.9, 1),
        chosen=number == 15,
    )


def step(number: int) -> dict[str, float | int | str | None]:
    row: dict[str, float | int | str | None] = {"step": number % 60, "phase": "blocks" if number < 60 else "whole"}
    row["loss"] = exp(-number / 60)
    return row | ({"kl": 0.5 * exp(-number / 50), "top1": 60 + number / 10} if number % 20 == 19 else {})


@pytest.fixture(scope="session")
def full() -> RunReport:
    """48 layers, 30 candidates, two phases of distillation, images skipped."""
    rng = random.Random(0)
    return RunReport(
        kind="compress",
        arch="deit_tiny_patch16_224",
        version="3f2a91c04b7d",
        input_version="a0b1c2d3e4f5",
        arguments={"layers": ["mlp", "qkv"], "nblocks": 1, "rank": None, "permute": True, "plan": {"lr": 3e-4}},
        command="milkweed compress ./deit ./deit-65 --budget 0.65",
        measured_on="CPU, 1 thread, float32, batches of 8",
        versions={"torch": "2.10.0"},
        seconds_by_step={"statistics": 12.4, "recovery": 733.0},
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
        curve=tuple(candidate(number, rng) for number in range(30)),
        history=tuple(step(number) for number in range(120)),
        warnings=("4 layers keep their number of weights",),
    )


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
