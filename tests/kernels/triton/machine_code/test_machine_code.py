"""The machine code of Triton and Gluon kernels for Hopper is judged, also under another Triton than the installed one.

`pytest tests/kernels/triton/machine_code -m slow -s` prints a row for each kernel. MILKWEED_OTHER_TRITON names
a folder with another Triton, such as an unpacked wheel of 3.6.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..scripts import printed
from .machine_code import MachineCode

SCRIPT = Path(__file__).parent / "machine_code_cases.py"
INT8, FP8, ROUNDED = "int8 fc1, tile 0", "fp8 fc2, tile 1", "rows: norm to int8"
INNER, LAST = "inner half, 192 rows", "ViT-B, tile 4, launch 3 of 8 images"
EARLY = "planted: inner half, 192 rows, bias loaded early"
SERIALISED = "planted: serialised"


@cache
def judged(*names: str, triton: str | None = None) -> tuple[str, dict[str, Any]]:
    """The version of a Triton, and the rows of machine_code_cases.py by name."""
    path = os.pathsep.join(filter(None, (triton, os.environ.get("PYTHONPATH"))))
    answer = json.loads(printed(SCRIPT, *names, PYTHONPATH=path, TRITON_INTERPRET="0"))
    return answer["triton"], {row["case"]: row for row in answer["rows"]}


def other_triton() -> str:
    folder = os.environ.get("MILKWEED_OTHER_TRITON")
    if not folder:
        pytest.skip("no other Triton: MILKWEED_OTHER_TRITON names its folder")
    return folder


def check(rows: dict[str, Any]) -> None:
    faults = {name: row["faults"] for name, row in rows.items() if row["faults"] and not name.startswith("planted")}
    assert not faults


@pytest.mark.slow
def test_what_runs_for_vit_b_is_as_it_should_be() -> None:
    version, rows = judged(INNER, LAST, SERIALISED, INT8, FP8, ROUNDED)
    check(rows)
    assert rows[INNER]["registers"] * rows[INNER]["threads"] == 64 * 1024
    assert 2 * rows[LAST]["shared"] < 227 * 1024
    # Weights before the wait for the launch before: the first chunk's tiles, and lines for the second-level cache.
    assert (rows[INNER]["loads before"], rows[INNER]["prefetches"]) == (6, 0)
    for name in (LAST, INT8, FP8):
        assert (rows[name]["loads before"], rows[name]["prefetches"]) == (0, 1)
    if version.startswith("3.9."):
        said = " ".join(rows[SERIALISED]["faults"])
        assert "24 waits for 24 tensor instructions in a loop" in said
        assert "C7513" in said


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_every_tile_on_hopper_is_as_it_should_be(other: bool) -> None:
    version, rows = judged(triton=other_triton() if other else None)
    for name, row in rows.items():
        print(f"\ntriton {version}, {name}: {row}", end="")
    assert len(rows) >= 20
    check(rows)


@pytest.mark.slow
def test_what_is_wrong_with_one_triton_alone_is_refused_there() -> None:
    for triton in (None, other_triton()):
        version, rows = judged(EARLY, SERIALISED, triton=triton)
        spills = "local memory in a loop" in str(rows[EARLY]["faults"])
        serialises = "C7513" in str(rows[SERIALISED]["faults"])
        known = {"3.6": (True, False), "3.9": (False, True)}.get(version[:3])
        assert known in (None, (spills, serialises))


def code(*texts: str, **changes: Any) -> MachineCode:
    """Machine code of a loop between two instructions."""
    texts = ("MOV R1, c[0x0]", *texts, "BRA 0x10")
    usual = {"registers": 128, "threads": 256, "shared_bytes": 0, "log": ""} | changes
    return MachineCode(tuple((16 * i, text) for i, text in enumerate(texts)), **usual)


GOOD = (*["HGMMA.64x128x16.F32.BF16 R24"] * 4, "WARPGROUP.DEPBAR.LE gsb0", "STG.E.128 desc[UR4]")


def test_a_good_loop_has_no_faults() -> None:
    assert not code(*GOOD).faults("HGMMA.*BF16")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (code(*GOOD[5:]).faults("HGMMA"), "no tensor instruction instead of HGMMA"),
        (code(*GOOD).faults("QGMMA"), "HGMMA.64x128x16.F32.BF16 instead of QGMMA"),
        (code("HGMMA.64x64x16.F32.TF32 R2", *GOOD).faults("HGMMA.*BF16"), "HGMMA.64x64x16.F32.TF32 instead of"),
        (code(*GOOD[1:]).faults("HGMMA"), "1 waits for 3 tensor instructions in a loop at 0x10"),
        (code(*GOOD, "LDL R2").faults("HGMMA"), "1 accesses to local memory in a loop at 0x10"),
        (code(*GOOD, "STG.E.64 desc[UR4]").faults("HGMMA"), "1 of 2 stores are narrower than 16 bytes"),
        (code(*GOOD, registers=255, threads=384).faults("HGMMA"), "255 registers of 384 threads"),
        (code(*GOOD, log="ptxas info : (C7513) Potential").faults("HGMMA"), "C7513) Potential"),
    ],
)
def test_each_fault_is_named(found: list[str], words: str) -> None:
    (fault,) = found
    assert fault.startswith(words)


def test_a_shallow_step_may_have_its_wait_and_a_kernel_its_last_one() -> None:
    assert not code(*GOOD[2:]).faults("HGMMA", step=2)
    assert code(*GOOD[3:]).faults("HGMMA", step=2)
