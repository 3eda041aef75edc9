"""The table of kernel resources: names and accesses are read right, the page says what spills."""

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench import device_code
from milkweed.bench import kernel_resources as bench
from milkweed.bench.device_code import Usage, kernel_name, memory_instructions, resource_usage

MANGLED = "_ZN2mw9attention15short_attentionINS0_4TileI13__nv_bfloat16Li1ELi64EEEEEvNS_18ShortAttentionArgsE"
NAME = "mw::attention::short_attention<mw::attention::Tile<mw::bf16, 1, 64> >"

USAGE = f"""
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0 CONSTANT[4]:40
 Function {MANGLED}:
  REG:168 STACK:24 SHARED:1024 LOCAL:0 CONSTANT[0]:576 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = f"""
		Function : {MANGLED}
        /*0b20*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0b30*/               @P0 STG.E.128 desc[UR4][R2.64+0x100], R4 ;
        /*0b40*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0b50*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*0b60*/                   STL [R1], R4 ;
        /*0b70*/                   LDL.LU R4, [R1] ;
        /*0b80*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
"""


def test_kernels_are_called_as_the_sources_call_them() -> None:
    assert kernel_name(MANGLED) == NAME
    assert kernel_name("main") == "main"


def test_what_cuobjdump_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_code, "_dump", lambda file, *options: USAGE if "-res-usage" in options else SASS)
    assert resource_usage(Path("library.so")) == {"90a": {NAME: Usage(168, 24, 0)}}
    counts = {"STG.128": 2, "STG.32": 1, "STG.16": 1, "STL": 1, "LDL": 1}
    assert memory_instructions(Path("library.so")) == {NAME: counts}


def row(dtype: str, registers: int, stores: dict[str, int]) -> dict[str, Any]:
    return {
        "op": "short_attention",
        "problem": "N 197, head dim 64",
        "dtype": dtype,
        "tile": 0,
        "kernel": NAME,
        "threads": 128,
        "shared_bytes": 69120,
        "registers": {"80": registers, "90a": 168},
        "spilled_bytes": {"80": 0, "90a": 24},
        "stores": stores,
    }


def test_the_page_says_what_spills() -> None:
    wide, narrow = {"STG.128": 4}, {"STG.128": 4, "STG.32": 1}
    document = {
        "nvcc": "13.0",
        "source_hash": "0123456789abcdef",
        "library_bytes": 12_340_000,
        "kernels": {"80": 2, "90a": 2},
        "spilling": {"80": [], "90a": [NAME]},
        "rows": [row("bfloat16", 160, wide), row("float16", 165, wide)],
    }
    page = bench.markdown(document)
    assert "| N 197, head dim 64 | 0 | 128 | 67.5 | 160 / 165 | 168 +24 |" in page
    assert page.count("N 197") == 1
    words = " ".join(page.split())
    assert (
        "Kernels that spill registers: 1 in sm_90a. In sm_90a every store to global memory is 16 bytes wide." in words
    )
    assert "2 kernels for each of 2 architectures and PTX, 12.3 MB" in words
    document["spilling"] = {"80": [], "90a": []}
    document["rows"] = [row("bfloat16", 160, narrow)]
    words = " ".join(bench.markdown(document).split())
    assert (
        "None spills a register. In sm_90a every store to global memory is 16 bytes wide, but for some of 32" in words
    )
    assert json.loads(bench._json(document)) == document


def test_a_library_that_is_missing_or_stale_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--library", str(tmp_path / "lib.so")]) == 1
    assert "lib.so is missing: run `make kernels`" in capsys.readouterr().err
