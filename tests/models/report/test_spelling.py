"""Figures as a person reads them."""

import pytest

from milkweed.models.report import spelling
from milkweed.models.report.layer_names import block, shared_stem


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (937, "937"),
        (999.4, "999"),
        (1000, "1.00 k"),
        (147_456, "147 k"),
        (999_499, "999 k"),
        (999_600, "1.00 M"),
        (5_717_416, "5.72 M"),
        (99_960_000, "100 M"),
        (1_258_000_000, "1.26 G"),
    ],
)
def test_compact(count: float, text: str) -> None:
    assert spelling.compact(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.0031, "0.0031"), (0.412, "0.412"), (9.996, "10.0"), (58.23, "58.2"), (99.96, "100")],
)
def test_three_digits(value: float, text: str) -> None:
    assert spelling.three_digits(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert spelling.duration(seconds) == text


def test_the_rest() -> None:
    assert spelling.points(-6.78) == "−6.8"
    assert spelling.points(0.04) == "±0.0"
    assert spelling.points(1) == "+1.0"
    assert spelling.percent(None) == spelling.share(1, 0) == spelling.optional(None) == "–"
    assert spelling.size(22_869_664) == "22.9 MB"
    assert spelling.size(30) == "30 B"
    assert spelling.counted(1, "image") == "1 image"
    assert spelling.counted(10_000, "image") == "10,000 images"
    assert spelling.before_arrow("147 k", "73.7 k") == "147"
    assert spelling.before_arrow("1.05 G", "676 M") == "1.05 G"
    assert spelling.before_arrow("111", "72.6") == "111"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("blocks.11.attn.qkv", "blocks.11"),
        ("layers.2.NC.10.mlp.fc1", "layers.2.NC.10"),
        ("head", ""),
        ("norm1.fc2", ""),
        ("0.weight", "0"),
    ],
)
def test_block(name: str, found: str) -> None:
    assert block(name) == found


def test_shared_stem() -> None:
    assert shared_stem(["blocks.1", "blocks.10", "blocks.2"]) == "blocks."
    assert shared_stem(["blocks.1", "blocks.10"]) == "blocks."
    assert shared_stem(["layers.0.NC.1", "layers.2.NC.0"]) == "layers."
    assert shared_stem(["layers.0", "blocks.0"]) == ""
    assert shared_stem(["blocks.3"]) == "blocks."
    assert shared_stem([]) == ""
