"""README's picture and table of compressed models: what they say is what was measured, and the rest of README stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.frontier.readme import DOCUMENT, filled, main

from ..support.frontiers import DENSE_MS, record

ROOT = Path(__file__).resolve().parents[2]
README = """# a

<!-- frontier: picture -->
<!-- end of picture -->

<!-- frontier: table -->
yesterday
<!-- end of table -->
z
"""


def row(place: int, name: str, source: str) -> dict[str, Any]:
    """One as `bench.frontier` writes it, of the figures of a search's record."""
    model = record()["models"][place]
    ms = {batch: model["ms"][batch] for batch in ("1", "8")}
    kept = {key: model[key] for key in ("computed_by", "bytes", "quality")}
    times = {batch: DENSE_MS[batch] / value for batch, value in ms.items()}
    return {"name": name, "source": source, "asked": model["computed_by"], **kept, "ms": ms, "times_dense": times}


@pytest.fixture
def document() -> dict[str, Any]:
    far = row(0, "SVD-LLM 50 %", "arXiv 2403.07378")
    far["quality"] = {**far["quality"], "agreement": {"value": 3.0, "low": 1.0, "high": 5.0}}
    return {
        "benchmark": "frontier",
        "finished": True,
        "machine": {"processor": "AMD EPYC", "cores": 2},
        "model": {"arch": "deit_tiny_patch16_224", "version": "16fed4054c2c"},
        "photographs": {"fitted": 250, "judged": 500, "exchanged": False},
        "rows": [
            row(10, "dense", ""),
            row(9, "dense", ""),
            row(7, "NNCF default int8", "NNCF"),
            {"name": "torchao dynamic int8", "source": "torchao", "asked": "torch", "missing": "not installed"},
            far,
            row(4, "deit-3x", "milkweed 0123456789ab"),
            row(3, "deit-3x", "milkweed 0123456789ab"),
        ],
    }


def test_the_table_is_dense_beside_compressed(document: dict[str, Any]) -> None:
    text = filled(README, document)
    assert text.startswith("# a\n")
    assert text.endswith("<!-- end of table -->\nz\n")
    assert (
        "![deit_tiny_patch16_224, compressed here: speedup 3.0 over dense openvino float32, 1.7 over dense openvino "
        "bfloat16; top-1 agreement 92.6 % [90.3, 94.9]]"
        "(bench/results/frontier.svg)\n<!-- end of picture -->" in text
    )
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    assert table == [
        ["dense, openvino float32", "26.4, 26.4", "1.00, 1.00", "0.57, 0.53", "77.4 %", "100.0 %", "0", "23.0 MB"],
        [
            "**deit-3x, openvino bfloat16**", "8.7, 6.8", "3.03, 3.88", "1.72, 2.07", "77.2 % (−0.2 [−2.5, +2.1])",
            "92.6 %", "0.026", "6.00 MB",
        ],
        [
            "NNCF default int8, openvino bfloat16", "11.8, 10.7", "2.24, 2.47", "1.27, 1.32",
            "77.4 % (±0.0 [−1.7, +1.7])", "96.0 %", "0.020", "6.10 MB",
        ],
        ["dense, openvino bfloat16", "15.0, 14.1", "1.76, 1.87", "1.00, 1.00", "77.4 %", "100.0 %", "0.0002",
         "23.0 MB"],
    ]  # fmt: skip
    assert "yesterday" not in text
    origin = " ".join(text.split())
    assert "on AMD EPYC, 2 cores: 500 held-out photographs, 250 others that calibrated; [95 %]." in origin
    assert filled(text, document) == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"finished": False}, "has not finished"),
        ({"rows": slice(0, 5)}, "no bundle of ours"),
    ],
)
def test_what_cannot_be_shown_leaves_readme(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    if "rows" in change:
        change = {"rows": document["rows"][change["rows"]]}
    record, readme = tmp_path / "record.json", tmp_path / "readme"
    readme.write_text(README)
    assert main(record, readme) == 1
    assert "No such file" in capsys.readouterr().err
    record.write_text(json.dumps({**document, **change}))
    assert main(record, readme) == 1
    assert said in capsys.readouterr().err
    assert readme.read_text() == README
    record.write_text(json.dumps(document))
    assert main(record, readme) == 0
    assert readme.read_text() == filled(README, document)
    drawn = (tmp_path / "record.svg").read_text()
    for words in (">milkweed<", "8.70 ms, 3.0×", "dense", "NNCF default int8"):
        assert words in drawn
    assert "SVD-LLM" not in drawn


def test_readme_is_what_the_command_writes(document: dict[str, Any]) -> None:
    """And has a place for it as long as nothing was measured."""
    text = (ROOT / "README.md").read_text()
    if (ROOT / DOCUMENT).exists():
        assert text == filled(text, json.loads((ROOT / DOCUMENT).read_text()))
    else:
        assert "bench/results/frontier.svg" in filled(text, document)
