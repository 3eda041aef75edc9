"""Tests `milkweed compress`: what was measured as a table and JSON, a recipe's file, skipped images, and refusals."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milkweed.cli.progress import job_progress
from milkweed.cli.replaced_options import REPLACED
from milkweed.compress import quantize, search, timing
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import Recipe, Structure
from milkweed.models import read_config
from milkweed.models.report import read_report

from ...support.command import Milkweed, Refused


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "QUANTIZATIONS", ())
    monkeypatch.setattr(search, "mergings", lambda model: [])
    monkeypatch.setattr(search, "structured", lambda evaluator, best: [])
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)


@pytest.fixture
def asked(milkweed: Milkweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompressJob]:
    """The job that a command line asks for, without doing it."""
    jobs: list[CompressJob] = []

    def stop(job: CompressJob, progress: Any) -> Any:
        jobs.append(job)
        raise ValueError("that is enough")

    def call(*options: object) -> CompressJob:
        assert milkweed("compress", bundle, tmp_path / "out", "--images", tmp_path, *options).code == 1
        return jobs[-1]

    monkeypatch.setattr("milkweed.compress.write.compress", stop)
    monkeypatch.setattr("milkweed.cli.modelling.compress._is_bundle", lambda path: True)
    bundle = tmp_path / "in"
    return call


def recipe_file(folder: Path, **values: Any) -> Path:
    file = folder / "recipe.json"
    file.write_text(json.dumps(values))
    return file


@pytest.mark.slow
def test_a_search_prints_what_it_measured_and_what_it_took(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    search = ("compress", colour_bundle, out, "--images", loose_photos, "--size", "1MB", "--batch", "1,4")
    ran = milkweed(*search).ok()
    (chosen,) = (line for line in ran.out.splitlines() if line.startswith("->"))
    assert "dense" in chosen or "class token last" in chosen
    assert "ms at 4" in ran.out
    assert re.search(r"judged on +1[78] held-out images", ran.out)
    assert "07-cut.png" in ran.err
    document = milkweed(*search, "--force", "--json").ok().document
    assert {row["name"] for row in document["models"]} == {"dense", "class token last"}
    assert sum(row["chosen"] for row in document["models"]) == 1
    assert milkweed("inspect", out, "--json").ok().document["version"] == document["version"]


@pytest.mark.usefixtures("no_page")
def test_a_recipe_is_done_and_an_image_that_cannot_be_read_is_skipped(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path
) -> None:
    out, arch = tmp_path / "out", read_config(colour_bundle).arch
    recipe = Recipe(structure=Structure(layers=("mlp", "qkv"), rank=1))
    file = recipe_file(tmp_path, arch=arch, **recipe.to_dict())
    rest = ("--images", loose_photos, "--recipe", file, "--backend", "torch", "--json")
    ran = milkweed("compress", colour_bundle, out, *rest).ok()
    (chosen,) = (row for row in ran.document["models"] if row["chosen"])
    assert chosen["name"] == str(recipe) == "Monarch 4 blocks rank 1 in mlp, qkv"
    assert {row["name"] for row in ran.document["models"]} == {"dense", chosen["name"]}
    config, report = read_config(out), read_report(out)
    assert {spec.rank for spec in config.structure.values()} == {1}
    assert report is not None
    assert report.arguments["recipe"] == config.provenance["commands"][-1]["arguments"]["recipe"] == recipe.to_dict()
    assert len([line for line in ran.err.splitlines() if "/07-cut.png: undecodable: " in line]) == 1
    assert [(use.role, use.images, len(use.skipped)) for use in report.data] == [
        ("calibration", 19, 0),
        ("held out", 17, 1),
    ]


def test_targets_come_with_their_units(asked: Callable[..., CompressJob]) -> None:
    assert asked("--latency", "8ms").target.ms == asked("--latency", "8").target.ms == 8
    assert asked("--latency", "0.5 s").target.ms == 500
    assert asked("--size", "6MB").target.bytes == 6_000_000
    assert asked("--max-drop", "1").target.drop == 1
    job = asked("--speedup", "3", "--try", "tokens,int8", "--minutes", "0", "--batch", "4", "--keep-weights")
    assert (job.target.speedup, job.methods, job.minutes, job.batches) == (3, ("tokens", "int8"), 0, (4,))
    assert (job.keep_weights, job.recipe) == (True, None)


def test_a_recipe_of_the_file_is_asked_for(asked: Callable[..., CompressJob], tmp_path: Path) -> None:
    assert asked("--recipe", recipe_file(tmp_path, widths={"mlp": 0.5})).recipe == Recipe.from_dict(
        {"widths": {"mlp": 0.5}}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--speedup", 2, "--max-drop", 1), "targets speedup and drop: only one can be asked for"),
        (("--speedup", "0"), "target speedup 0.0 must be a number above 0"),
        (("--size", "6 parsecs"), "--size '6 parsecs': must be a size such as 6MB"),
        (("--latency", "8 parsecs"), "--latency '8 parsecs': must be a time such as 8ms"),
        (("--latency", "ms"), "--latency 'ms': must be a time such as 8ms"),
        (("--latency", "0ms"), "target ms 0.0 must be a number above 0"),
        (("--batch", "1,x"), "--batch 'x': must be whole numbers"),
        (("--batch", "0"), "--batch 0: must be whole numbers from 1 to 256"),
        (("--backend", "torch,fast"), "--backend 'fast': must be torch, milkweed, onnxruntime, openvino or some"),
        (("--try", "magic"), "--try 'magic': must be some of monarch, "),
        (("--minutes", "-1"), "invalid value for '--minutes': -1: must be at least 0; see "),
        (("--recipe", "r.json", "--speedup", 2), "--speedup is for a search: --recipe r.json says all that is done"),
        (("--recipe", "r.json", "--max-drop", 1), "--max-drop is for a search: "),
        (("--recipe", "r.json", "--try", "int8"), "--try is for a search: "),
        (("--layers", "mlp"), "--layers is a line of the recipe's file now (structure), see --recipe; see "),
        (("--no-distil",), "--no-distil is --minutes 0 now; see milkweed compress --help"),
        *(((option,), f"{option} {successor}") for option, successor in REPLACED.items()),
    ],
)
def test_wrong_options_are_refused(refused: Refused, tmp_path: Path, options: tuple[object, ...], message: str) -> None:
    line = refused("compress", tmp_path / "in", tmp_path / "out", "--images", tmp_path, *options, code=2)
    assert line.startswith(message)


def test_an_option_of_another_command_is_not_replaced(refused: Refused, tmp_path: Path) -> None:
    said = refused("convert", tmp_path / "in", tmp_path / "out", "--storage", "int8", "--nblocks", 4, code=2)
    assert said == "no such option: --nblocks; see milkweed convert --help"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"structur": {}}', "a recipe: unknown key 'structur': must be one of arch, distillation, quantization, "),
        ('{"arch": "vitae_basic_tiny"}', "--recipe {file} is for vitae_basic_tiny, {bundle} is "),
        ("{", "recipe {file}: "),
        ('{"structure": {"layers": ["nothing"]}}', "structure: layers 'nothing' selects no linear layer"),
    ],
)
def test_a_recipe_that_cannot_be_done_is_refused(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path, text: str, message: str
) -> None:
    places = {"file": tmp_path / "r.json", "bundle": colour_bundle}
    places["file"].write_text(text)
    message = message.replace("{file}", str(places["file"])).replace("{bundle}", str(colour_bundle))
    ran_with = ("--images", loose_photos, "--recipe", places["file"], "--backend", "torch")
    ran = milkweed("compress", colour_bundle, tmp_path / "out", *ran_with)
    assert (ran.code, ran.out) == (1, "")
    (error,) = (line for line in ran.err.splitlines() if line.startswith("milkweed: error: "))
    assert message in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("{out}", "DATA {out}: no such folder"),
        ("{few}", "DATA {few}: 10 of 10 images can be read, a search needs 32"),
        ("{none}", "DATA {none}: no images in it (1 other files)"),
    ],
)
def test_images_that_there_are_too_few_of_are_refused(
    refused: Refused, colour_bundle: Path, loose_photos: Path, tmp_path: Path, images: str, message: str
) -> None:
    places = {"out": tmp_path / "out", "few": tmp_path / "few", "none": tmp_path / "none"}
    for name in ("few", "none"):
        places[name].mkdir()
    for path in sorted(loose_photos.iterdir())[10:20]:
        os.link(path, places["few"] / path.name)
    (places["none"] / "notes.txt").write_text("")
    said = refused("compress", colour_bundle, places["out"], "--images", images.format(**places))
    assert said.startswith(message.format(**places))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few", "none"]


def test_steps_are_shown_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from milkweed.cli import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with job_progress("compress: ", units={"fitting": "layers"}) as told:
        told.step("calibrating", 1, 4)
        now[0] = 11.0
        told.step("calibrating", 2, 4)
        told.step("fitting", 0, 10)  # begins now: its rate and time left are its own
        now[0] = 22.0
        told.step("fitting", 5, 10)
        told.step("calibrating", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "milkweed: compress: calibrating: 2 of 4 done, 0.1 done/s, 22 s left",
        "milkweed: compress: fitting: 5 of 10 layers, 0.5 layers/s, 11 s left",
    ]
