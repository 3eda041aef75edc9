"""The model of a Hopper GPU: bounds that no card can beat, and measured rows beside modelled ones."""

from pathlib import Path

import pytest

from milkweed.bench.gpu.journal import append
from milkweed.bench.studies.hopper import DECODE_MS, GPUS, WAYS, dense, main, measured, modelled, triton_mlp

H100, H200 = GPUS
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_no_row_beats_the_tensor_cores_or_the_memory(gpu: object) -> None:
    assert gpu in GPUS
    for m, n, k in ((6304, 3072, 768), (25216, 768, 3072), (197, 384, 384)):
        assert dense(H200, m, n, k) > 1e6 * 2 * m * n * k / 989e12
        assert dense(H200, m, n, k, in_8_bits=True) > 1e6 * 2 * m * n * k / 1979e12
        assert dense(H100, m, n, k) > 1e6 * 2 * (m * n + n * k) / 3.35e12
    for m in (6304, 25216):
        assert sum(triton_mlp(H100, m, 768, 3072)) > 1e6 * 2 * m * 768 * 3840 / 4 / 989e12


def test_what_a_way_saves_is_less_than_its_share_of_the_work() -> None:
    us = {name: way.forward(H200, 128, 768) for name, way in WAYS.items()}
    assert us["dense"] / 2 < us["8 bits"] < us["dense"]
    assert us["tokens, 8 bits"] < min(us["tokens"], us["8 bits"])
    one = {name: way.forward(H200, 1, 384) for name, way in WAYS.items()}
    assert one["fused mlp+qkv+proj"] > one["fused mlp"] > one["dense"]  # launches alone


def test_measured_rows_stand_beside_the_model_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = [
        {"section": "levers", "what": "vit_base_patch16_224", "batch": 32, "candidate": name, "us": us}
        for name, us in (("dense twin", 300.0), ("dense twin, torch.compile", 250.0), ("tokens, 8 bits", 100.0))
    ]
    row = next(row for row in modelled(H100) if row[:4] == ("levers", "vit_base_patch16_224", 32, "tokens"))
    assert measured(journal, row) is None
    assert measured(journal, (*row[:3], "tokens, 8 bits", 0.0)) == 100.0
    assert measured(journal, (*row[:3], "dense", 0.0)) == 250.0
    out = tmp_path / "day.jsonl"
    for made in journal:
        append(out, {"kind": "row", "unit": "levers/vit_base_patch16_224/32/r1", "round": 1, **made})
    main([str(out)])
    text = capsys.readouterr().out
    assert "100 us  2.50x" in next(
        line for line in text.splitlines() if " 32 tokens, 8 bits" in line and "base" in line
    )
    assert f"decode {16 / DECODE_MS[1] * 1000:.0f} to {16 / DECODE_MS[0] * 1000:.0f} JPEGs" in text


def test_the_h100_s_own_journal_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(REPOSITORY / "bench/results/gpu_h100.jsonl")])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "ViT-B" in line and "128 triton_mlp" in line)
    assert line.endswith("1.12x")
    with pytest.raises(SystemExit, match="JOURNAL"):
        main(["--help"])
