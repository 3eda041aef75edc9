"""The decode benchmark's section `damage`: one change behind the scan's head, and counts that can be told apart."""

from io import BytesIO
from itertools import groupby
from typing import Any

import pytest
import torch

from milkweed.bench.bodies import picture
from milkweed.bench.decode.damage import CHUNK, KINDS, START_OF_SCAN, damage_rows, damaged
from milkweed.loaders import CpuLoader, InputError, LoadResult, PreprocessSpec

SPEC = PreprocessSpec(size=64)
AT_MOST = {"one bit": 1, "one byte": 1, "16 random bytes": 16, "64 zeros": 64}


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    made = []
    for seed in range(CHUNK + 4):
        body = BytesIO()
        picture(160, 120, seed).save(body, "JPEG", quality=90)
        made.append(body.getvalue())
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_one_place_of_the_coded_data_is_changed(bodies: list[bytes], kind: str) -> None:
    found = damaged(bodies, kind)
    assert found == damaged(bodies, kind) != bodies
    for before, after in zip(bodies, found, strict=True):
        places = [at for at in range(len(before)) if before[at] != after[at]]
        assert len(before) == len(after)
        assert len(places) <= AT_MOST[kind]
        if places:
            assert places[0] > before.rindex(START_OF_SCAN) + 2
            assert places[-1] - places[0] < AT_MOST[kind]
            assert places[-1] < len(before) - 2  # the end marker stays
    if kind == "one bit":
        pairs = zip(bodies, found, strict=True)
        assert all((int.from_bytes(a) ^ int.from_bytes(b)).bit_count() == 1 for a, b in pairs)


class Refusing:
    """Refuses the first image of each batch."""

    def load(self, items: Any, infos: Any = None) -> LoadResult:
        return LoadResult(torch.empty(0), [], {0: InputError("undecodable", "?")})


def test_counts_are_those_of_the_loaders(bodies: list[bytes]) -> None:
    rows = damage_rows(bodies, 1, Refusing())  # type: ignore[arg-type]
    whole = CpuLoader(SPEC)
    for row in rows:
        assert (row.images, row.dali_refused) == (len(bodies), 2)  # of two batches
        assert row.decode_refused == len(whole.load(damaged(bodies, row.kind)).errors)
        assert row.check_refused == row.decode_refused
        assert row.agreed == row.images
        assert min(row.check_cpu_ms, row.decode_cpu_ms) > 0
    assert [kind for kind, _ in groupby(row.kind for row in rows)] == list(KINDS)
    assert any(0 < row.decode_refused < row.images for row in rows)


def test_without_dali_nothing_is_said_of_it(bodies: list[bytes]) -> None:
    assert {row.dali_refused for row in damage_rows(bodies[:2], 1, None)} == {None}
