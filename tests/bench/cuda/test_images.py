"""The GPU benchmark's section `images`: its dry run ends with or without DALI, and what is wrong does not pass."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.bench.bodies import BAD_KINDS, arrays, jpegs, pictures
from milkweed.bench.cuda.images import answers, facts, served
from milkweed.bench.cuda.images.contract import LIMITS, Limit, equality
from milkweed.bench.cuda.images.isolation import isolation
from milkweed.bench.cuda.images.rates import measure_rates, rate
from milkweed.bench.cuda.images.stream import check_stream_order
from milkweed.bench.cuda.images.subject import TINY, ImageReport, Subject, name_of, take_photos
from milkweed.bench.cuda.run import Run
from milkweed.bench.cuda.timing import HostTimer
from milkweed.bench.gpu import main
from milkweed.loaders import CpuLoader, InputError, LoadResult, PreprocessSpec
from milkweed.models import BundleConfig, create_model, save_bundle
from milkweed.models.bundle.labels import default_labels

CPU = torch.device("cpu")
SMALL = PreprocessSpec(size=64)
VIT = {"img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 5}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("photos")
    for number, body in enumerate(jpegs(pictures(180, 4))):
        (made / f"{number}.jpg").write_bytes(body)
    return made


@pytest.fixture
def dry_run(folder: Path, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "gpu.json"
        command = ["--dry-run", "--sections", "images", "--photos", str(folder), "--out", str(out), *arguments]
        code = main(command)
        return code, json.loads(out.read_text())

    return run


def subject(folder: Path, **changes: Any) -> Subject:
    photos, large = take_photos(folder, TINY)
    made = Subject(CPU, torch.float32, TINY, photos, large, None, None, lambda: 60.0, print)
    return replace(made, **changes)


def test_dry_run_walks_every_part_but_the_server(dry_run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    code, result = dry_run("--parts", "facts", "equality", "bad", "stream", "memory", "rates")
    images = result["images"]
    assert (code, images["failed"]) == (0, 0)
    assert not [line for line in result["skipped"] if "ended by" in line]
    assert {finding["name"].split(",")[0] for finding in images["findings"]} == {
        "equality",
        "bad files",
        "truncated files past the guard",
        "stream order",
        "memory (process",
    }
    assert {(row["loader"], row["passed"]) for row in images["equality"]} == {
        (f"hw {hw} {way}", True) for hw in (0, 1) for way in ("exact", "fused")
    }
    silent = {finding["name"]: finding["status"] for finding in images["findings"] if "overwritten" in finding["name"]}
    assert silent["bad files, hw 0, strict, scan overwritten"] == "PASS"
    assert silent["bad files, hw 0, scan overwritten"] == "INFO"
    timed = {row["way"].split(",")[0] for row in images["rates"] if row["images_per_second"]}
    assert {"DALI exact", "DALI fused", "our cpu loader"} <= timed
    assert "jpeg_engines" in images["facts"]
    assert "one bad image harms nobody" in capfd.readouterr().out


def test_without_dali_every_part_says_so(dry_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    code, result = dry_run("--parts", "facts", "equality", "bad", "stream", "memory", "rates")
    assert code == 0
    assert len([line for line in result["skipped"] if "ended by" in line]) == 5
    notes = {row["way"].split(",")[0]: row["note"] for row in result["images"]["rates"]}
    assert notes["our cpu loader"] == ""
    assert "pip install 'milkweed[dali]'" in notes["DALI exact"]


def test_a_server_is_put_under_load(
    dry_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", **VIT)
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=VIT, preprocess=PREPROCESS)
    save_bundle(tmp_path / "bundle", model, config, default_labels(5))
    monkeypatch.setattr(served, "LOADERS", ("cpu",))
    code, result = dry_run("--parts", "served", "--bundle", str(tmp_path / "bundle"))
    rows = result["images"]["served"]
    assert code == 0
    assert [(row["loader"], list(row["statuses"])) for row in rows] == [("cpu", ["200"])] * 2
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        share = row["served"] / min(row["decode_alone"], row["forward_alone"])
        assert row["share"] == pytest.approx(share, abs=1e-3)
    assert "images/s" in capsys.readouterr().out


def test_what_a_server_answers_is_measured(dry_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=VIT, preprocess=PREPROCESS)
    save_bundle(tmp_path / "bundle", create_model(config.arch, **VIT), config, default_labels(5))
    monkeypatch.setattr(answers, "LOADERS", ("cpu",))
    monkeypatch.setattr(answers, "made_bundle", lambda path, arch, layers: tmp_path / "bundle")
    code, result = dry_run("--bundle", str(tmp_path / "bundle"), "--parts", "numerics", "growth", "latency", "ingest")
    assert (code, result["skipped"]) == (0, [])
    images = result["images"]
    goals = {goal["goal"].split(": ")[-1]: goal for goal in images["goals"]}
    assert 0 <= goals["relative error of the logits"]["measured"] <= 1e-2
    assert goals["top-1 as in float32"]["measured"] == 1.0
    assert 0 < goals["weights beside dense"]["measured"] <= 0.45
    assert [list(row["statuses"]) for row in (*images["latency"], *images["ingest"])] == [["200"]] * 3
    (latency,) = (goal for name, goal in goals.items() if name.startswith("latency of one image"))
    assert latency["measured"] == pytest.approx(images["latency"][0]["p50_ms"], rel=1e-3)
    assert [finding["name"] for finding in images["findings"]] == ["memory over 8 images"]


def test_goals_are_of_dali_and_of_large_photographs() -> None:
    def row(what: str, loader: str, rate: float) -> served.Served:
        return served.Served(what, loader, rate, 1.0, 2.0, {}, 1000.0, 2000.0)

    rows = [row("12.0 MP", "dali", 900), row("0.2 MP", "dali", 700), row("12.0 MP", "cpu", 500)]
    found = {str(goal["goal"]): (goal["measured"], goal["met"]) for goal in served._goals(rows)}
    assert found == {
        "served with DALI, 12.0 MP: share of the slower of decode and forward alone": (0.9, True),
        "served with DALI, 0.2 MP: share of the slower of decode and forward alone": (0.7, False),
        "served, 12.0 MP: DALI over the cpu loader": (1.8, True),
    }


class Spoiling:
    """The fast loader with one thing wrong."""

    def __init__(self, how: str, spec: PreprocessSpec = SMALL) -> None:
        self._loader, self._how = CpuLoader(spec), how

    def load(self, items: Sequence[bytes], /) -> LoadResult:
        found = self._loader.load(items)
        if self._how == "shifts":
            found.pixels = found.pixels.roll(1, dims=3)
        if self._how == "blackens":
            found.pixels[0] = found.pixels[0].amin((1, 2), keepdim=True)
        if self._how == "harms neighbours" and found.errors:
            found.pixels[0] += 1
        if self._how == "renames errors":
            found.errors = {place: InputError("empty", "?") for place in found.errors}
        return found


def test_equality_notices(folder: Path) -> None:
    # Chequers of 1 px: a crop that is off by one pixel is off by a level everywhere.
    chequers = np.repeat((np.indices((224, 225)).sum(0) % 2 * 255)[..., None], 3, -1).astype(np.uint8)
    whole, lossless = PreprocessSpec(), {"chequers": arrays([chequers])[0]}
    assert equality(Spoiling("nothing", whole), "cpu", "lossless", lossless, whole, LIMITS["cpu"]).passed
    assert not equality(Spoiling("shifts", whole), "cpu", "lossless", lossless, whole, LIMITS["dali gpu"]).passed
    photographs = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    blackened = equality(Spoiling("blackens"), "cpu", "photographs", photographs, SMALL, Limit(256, 256))
    assert (blackened.black, blackened.passed) == (1, False)
    bad = {"cut": BAD_KINDS["truncated"](photographs["0.jpg"], 1), **photographs}
    assert equality(Spoiling("renames errors"), "cpu", "bad", bad, SMALL, Limit(256, 256)).wrong_status == 1


@pytest.mark.parametrize("how", ["nothing", "harms neighbours", "renames errors"])
def test_isolation_notices(folder: Path, how: str) -> None:
    bodies = [path.read_bytes() for path in sorted(folder.iterdir())]
    rows = isolation({"cpu": (Spoiling(how), LIMITS["cpu"])}, bodies, SMALL, rounds=1)
    assert [row.kind for row in rows] == list(BAD_KINDS)
    answers, errors = {row.right_answers for row in rows}, {row.right_errors for row in rows}
    assert answers == ({23} if how == "harms neighbours" else {24})
    assert (errors == {8}) is (how != "renames errors")


class Disordered:
    """A loader that does not keep to the order of things: its later answers are wrong, or write into earlier ones."""

    def __init__(self, how: str) -> None:
        self._loader, self._how = CpuLoader(PreprocessSpec()), how
        self._calls, self._earlier = 0, torch.empty(0)

    def load(self, items: Sequence[bytes]) -> LoadResult:
        found = self._loader.load(items)
        self._calls += 1
        if self._calls > 2 and self._how == "late":
            found.pixels[0] = float("nan")
        if self._calls > 2 and self._how == "overwrites":
            self._earlier += 1
        self._earlier = found.pixels
        return found

    def close(self) -> None:
        self._loader.close()


@pytest.mark.parametrize("how", ["nothing", "late", "overwrites"])
def test_stream_order_notices(folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(Subject, "dali", lambda *_, **__: Disordered(how))
    report = ImageReport()
    check_stream_order(subject(folder), report)
    assert {finding.status for finding in report.findings} == {"PASS" if how == "nothing" else "FAIL"}
    overwritten = {"0 overwritten" in finding.value for finding in report.findings}
    assert overwritten == {how != "overwrites"}


def test_rates_for_which_no_time_is_left_are_listed(folder: Path) -> None:
    report = ImageReport()
    measure_rates(subject(folder, seconds_left=lambda: -1.0), report)
    assert len(report.rates) == 28
    assert {row["note"] for row in report.rates} == {"skipped: out of time"}


def test_a_rate_is_of_waited_calls_over_all_bodies(folder: Path) -> None:
    one = subject(folder)
    seen: list[bytes] = []

    def load(bodies: Sequence[bytes]) -> None:
        seen.extend(bodies)
        time.sleep(0.01)

    found = rate(one, load, one.photos, 3, 0.05)
    assert set(seen) == set(one.photos)
    assert len(seen) == 3 * (found.calls + 2)
    assert found.images_per_second == pytest.approx(300, rel=0.5)
    assert found.p50_ms is not None
    assert found.p50_ms >= 10


def test_large_photographs_are_called_by_their_size(folder: Path) -> None:
    one = subject(folder)
    assert list(one.sets) == ["0.1 MP made", "0.0 MP"]
    assert name_of([one.large[0], one.photos[0], one.large[0]]) == "0.1 MP"


def test_engines_that_cannot_be_counted_are_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libnvjpeg.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(facts, "_libraries", lambda: iter([broken]))
    assert facts.jpeg_engines().startswith("not counted: libnvjpeg.so: ")
    monkeypatch.setattr(facts, "_libraries", lambda: iter(()))
    assert facts.jpeg_engines() == "not counted: no libnvjpeg in the nvidia packages"


def test_sections_share_the_time_that_is_theirs() -> None:
    def left(sections: Sequence[str], name: str) -> float:
        return Run(CPU, torch.float32, True, 4, 100.0, 0.0, HostTimer(), sections=sections).seconds_left(name)

    assert left(["images"], "images") == pytest.approx(100, abs=1)
    assert left(["check", "mlp"], "check") == pytest.approx(100 * 25 / 70, abs=1)
    assert left(["check", "mlp"], "mlp") == pytest.approx(100, abs=1)
    assert left(["model", "images"], "model") == pytest.approx(100 * 13 / 113, abs=1)


def test_the_kernels_sections_need_no_decoder_and_no_server() -> None:
    program = (
        "import sys, milkweed.bench.gpu; "
        "print([name for name in ('simplejpeg', 'pydantic', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"
