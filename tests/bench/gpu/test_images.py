"""The GPU benchmark's rows about decoding: a dry run walks all, a failure is a row, and what is wrong is seen."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.bench.bodies import BAD_KINDS, arrays, jpegs, pictures
from milkweed.bench.decode.methods import SPEC
from milkweed.bench.gpu import images as checks
from milkweed.bench.gpu.images import CPU, ENGINE, EXACT, FUSED, STRICT, Decoding
from milkweed.bench.gpu.journal import Record, ends, read, rows
from milkweed.bench.gpu.plan import Task, steps
from milkweed.bench.gpu.step import attempt
from milkweed.loaders import CpuLoader, InputError, LoadResult
from milkweed.loaders.errors import LoaderError

NAMES = {
    *(("equality with PillowLoader", name) for name in (EXACT, FUSED, ENGINE)),
    *((f"bad files: {kind}", name) for kind in (*BAD_KINDS, "of the folder") for name in (EXACT, ENGINE, STRICT)),
    *(("stream order", name) for name in (EXACT, ENGINE)),
    ("memory over sound batches", EXACT),
    ("memory over lost batches", EXACT),
    *(
        (f"rate, {what}", name)
        for what in ("photographs", "4000x3000 px")
        for name in (CPU, EXACT, FUSED, ENGINE, STRICT)
    ),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("photos")
    for number, body in enumerate(jpegs(pictures(300, 4))):
        (folder / f"{number}.jpg").write_bytes(body)
    return str(folder)


def measured(tmp_path: Path, photos: str, *, bad: str | None = None) -> tuple[list[Record], dict[str, Record]]:
    """The rows of a dry run, and how its parts ended."""
    task = Task(str(tmp_path / "day.jsonl"), dry_run=True, photos=photos, bad=bad, sections=("images",))
    for unit in steps(task)[1].units:
        attempt(task, unit)
    records = read(Path(task.out))
    return rows(records), ends(records)


@pytest.mark.slow
@pytest.mark.parametrize("with_dali", [True, False])
def test_a_dry_run_walks_every_row(
    with_dali: bool, tmp_path: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where DALI is missing, the CPU loader stands in."""
    if with_dali:
        pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    else:
        monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.jpg").write_bytes(b"")
    (bad / "text.jpg").write_bytes(b"no picture")
    made, ended = measured(tmp_path, photos, bad=str(bad))
    assert {end["state"] for end in ended.values()} == {"complete"}
    assert {(row["what"], row["candidate"]) for row in made} == NAMES
    assert not [row for row in made if row["note"] or row["passed"] is False]
    found = {(row["what"], row["candidate"]): row["figures"] for row in made}
    assert found["equality with PillowLoader", EXACT]["images"] == 5
    assert found["bad files: scan overwritten", STRICT]["wrong_status"] == 0
    if with_dali:  # it answers these with a picture of its own; read on the CPU before, they are refused
        assert 0 < found["equality with PillowLoader", FUSED]["worst_mean_levels"] <= 0.3
        assert found["bad files: scan overwritten", EXACT]["wrong_status"] == 8
    rates = [row for row in made if row["what"].startswith("rate")]
    assert Counter(row["batch"] for row in rates) == {8: 2 * 5, 1: 2 * 5}
    for row in rates:
        rate = 1e3 * row["batch"] / row["figures"]["p50_ms"]
        assert row["figures"]["images_per_second"] == pytest.approx(rate, rel=1e-2)
        assert row["candidate"] != CPU or row["figures"]["over_cpu"] == 1


def test_what_is_missing_is_named_and_one_failure_is_not_the_others(
    tmp_path: Path, photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(_: Decoding, name: str) -> CpuLoader:
        if name == FUSED:
            raise RuntimeError("an illegal access\nand more")
        if name != CPU:
            raise LoaderError("loader dali needs nvidia-dali")
        return CpuLoader(SPEC)

    monkeypatch.setattr(Decoding, "loader", loader)
    made, ended = measured(tmp_path, photos)
    assert [row["candidate"] for row in made if "figures" in row] == [CPU] * 4
    notes = {(row["candidate"], row["passed"], row["note"]) for row in made if "figures" not in row}
    missing, broken = "LoaderError: loader dali needs nvidia-dali", "RuntimeError: an illegal access"
    assert notes == {*((name, None, missing) for name in (EXACT, ENGINE, STRICT)), (FUSED, False, broken)}
    states = {unit: (end["state"], end["why"]) for unit, end in ended.items()}
    assert states["images/stream order/dali exact"] == ("absent", missing)
    assert states["images/equality with PillowLoader/dali fused"] == ("error", broken)
    assert states["images/rate, photographs/64"] == ("wrong", f"1 failed, the first: {broken}")


def test_a_folder_without_photographs_is_named(tmp_path: Path) -> None:
    _, ended = measured(tmp_path, str(tmp_path))
    assert "no JPEG in" in ended["images/stream order/dali exact"]["why"]


class Spoiling:
    """The CPU loader with one thing wrong."""

    def __init__(self, how: str) -> None:
        self._loader, self._how = CpuLoader(SPEC), how
        self._calls, self._earlier = 0, torch.empty(0)
        self._kept: list[torch.Tensor] = []

    def load(self, items: Sequence[bytes]) -> LoadResult:
        loaded = self._loader.load(items)
        self._calls += 1
        if self._how == "shifts":
            loaded.pixels = np.roll(loaded.pixels, 1, axis=3)
        if self._how == "blackens":
            loaded.pixels[0] = loaded.pixels[0].min((1, 2), keepdims=True)
        if self._how == "harms neighbours" and loaded.errors:
            loaded.pixels[0] += 1
        if self._how == "renames errors":
            loaded.errors = {place: InputError("empty", "?") for place in loaded.errors}
        if self._how == "is late" and self._calls > 2:
            loaded.pixels[0] = float("nan")
        if self._how == "overwrites" and self._calls > 2:
            self._earlier += 1
        if self._how == "grows":
            self._kept.append(torch.ones(40 << 20))
        self._earlier = loaded.pixels
        return loaded


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize(
    ("check", "how", "figures"),
    [
        ("equality", "nothing", {"black": 0}),
        ("equality", "shifts", {"black": 0}),
        ("equality", "blackens", {"black": 1}),
        ("isolation", "nothing", {"changed_neighbours": 0, "wrong_status": 0}),
        ("isolation", "harms neighbours", {"changed_neighbours": 4, "wrong_status": 0}),
        ("isolation", "renames errors", {"changed_neighbours": 0, "wrong_status": 8}),
        ("stream_order", "nothing", {"decoded_wrong": 0, "overwritten": 0}),
        ("stream_order", "is late", {"decoded_wrong": 2, "overwritten": 0}),
        ("stream_order", "overwrites", {"decoded_wrong": 0, "overwritten": 2}),
        ("memory", "nothing", {}),
        ("memory", "grows", {}),
    ],
)
def test_a_check_notices(
    check: str, how: str, figures: dict[str, int], photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, loader = Decoding(Task("", dry_run=True, photos=photos)), Spoiling(how)
    monkeypatch.setattr(bench, "loader", lambda name: loader)
    if check == "equality":  # chequers of 1 px: a crop that is off by one pixel is off by a level everywhere
        chequers = np.repeat((np.indices((224, 225)).sum(0) % 2 * 255)[..., None], 3, -1).astype(np.uint8)
        bench.sets = {"chequers": arrays([chequers])}
    more: dict[str, Any] = {"isolation": {"kind": "truncated"}, "memory": {"lost": False}}.get(check, {})
    row = getattr(checks, check)(bench, EXACT, **more)
    assert row["figures"].items() >= figures.items()
    assert row["passed"] is (how == "nothing")
    if check == "memory":
        assert (row["figures"]["after_mib"] - row["figures"]["before_mib"] >= 64) is (how == "grows")
