"""Tests `milkweed compress` with images: calibration, budgets, distillation, skipped images, refusals, a killed run."""

import os
from pathlib import Path

import pytest

from milkweed.cli.progress import job_progress
from milkweed.models import load_bundle, read_config
from milkweed.models.report import read_report

from ...support.command import Milkweed, Refused

QUICK = ("--device", "cpu", "--layers", "mlp,qkv")


def test_compress_skips_an_image_that_cannot_be_read(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path
) -> None:
    ran = milkweed("compress", colour_bundle, tmp_path / "out", *QUICK, "--calibration", loose_photos)
    assert ran.code == 0
    skipped = [line for line in ran.err.splitlines() if "skipped" in line]
    assert len(skipped) == 1
    assert skipped[0].startswith("milkweed: skipped ")
    assert "/07-cut.png: undecodable: " in skipped[0]
    report = read_report(tmp_path / "out")
    assert report is not None
    (use,) = report.data
    assert (use.role, use.folder, use.images) == ("calibration", loose_photos.name, 36)
    assert [(image.image, image.code) for image in use.skipped] == [("07-cut.png", "undecodable")]
    assert report.after is not None
    assert (report.after.top1, report.after.images) == (None, 14)
    assert "held out    14 images: KL " in ran.out
    assert "top-1" not in ran.out
    assert "36 calibration images are few" in ran.out
    assert f"report      {tmp_path / 'out' / 'report.html'}" in ran.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "07-cut.png" in page


@pytest.mark.usefixtures("no_page")
def test_compress_measures_accuracy_on_labelled_images(
    milkweed: Milkweed, colour_bundle: Path, colour_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = milkweed("compress", colour_bundle, out, *QUICK, "--calibration", colour_photos, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    before, after = document["report"]["before"], document["report"]["after"]
    # two of every five of the 36 sorted images are held out: the dense bundle's answers to these
    held_out = [path for place, path in enumerate(sorted(colour_photos.rglob("*.png"))) if place % 5 > 2]
    for bundle, found in ((colour_bundle, before), (out, after)):
        results = milkweed("classify", "--model", bundle, *held_out, "--top-k", 1, "--json").document["results"]
        hits = sum(row["predictions"][0]["id"] == Path(row["image"]).parent.name for row in results)
        assert found["top1"] == pytest.approx(100 * hits / 14)
    assert (document["bundle"], document["version"]) == (str(out), read_config(out).version)
    assert document["parameters_after"] == sum(p.numel() for p in load_bundle(out)[0].parameters())
    picture = tmp_path / "out.svg"
    again = ("--calibration", colour_photos, "--force", "--plot", picture)
    ran = milkweed("compress", colour_bundle, out, *QUICK, *again)
    assert "relative error of the outputs" in picture.read_text()
    assert f"top-1 {before['top1']:.1f} -> {after['top1']:.1f} %" in ran.out


@pytest.mark.usefixtures("no_page")
def test_compress_meets_a_budget(
    milkweed: Milkweed, refused: Refused, colour_bundle: Path, colour_photos: Path, tmp_path: Path
) -> None:
    out, fixed = tmp_path / "out", (*QUICK, "--calibration", colour_photos, "--refinements", 1)
    said = refused("compress", colour_bundle, out, *fixed, "--budget", 0.02)
    assert said.startswith("budget 0.02 cannot be met: the smallest possible is 0.")
    assert not out.exists()
    least = float(said.rsplit(" ", 1)[1])
    ran = milkweed("compress", colour_bundle, out, *fixed, "--budget", least + 0.001, "--json")
    assert ran.code == 0, ran.err
    rows = [row for row in ran.document["report"]["layers"] if row["reason"]]
    share = sum(row["weights"] for row in rows) / sum(row["dense_weights"] for row in rows)
    assert share == pytest.approx(least, abs=1e-3)
    arguments = read_config(out).provenance["commands"][-1]["arguments"]
    assert (arguments["budget"], arguments["refinements"], arguments["block_counts"]) == (
        least + 0.001,
        1,
        [1, 2, 4, 8],
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "0.5"), "--budget 0.5 needs images to measure on: give --calibration DIR"),
        (("--budget", "half"), "invalid value for '--budget': 'half': must be a number; see milkweed compress --help"),
        (("--block-counts", "1,x"), "--block-counts '1,x': must be whole numbers from 1 on, with commas between"),
        (("--block-counts", "0"), "--block-counts '0': must be whole numbers from 1 on"),
        (("--calibration-images", "0"), "invalid value for '--calibration-images': 0: must be at least 1"),
        (("--recover", "p", "--hard-share", "1"), "--hard-share is now --label-weight; see milkweed compress --help"),
        (("--bytes", "3MB"), "--bytes is now --size; see milkweed compress --help"),
    ],
)
def test_wrong_options_are_refused(
    refused: Refused, colour_bundle: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert refused("compress", colour_bundle, tmp_path / "out", *arguments, code=2).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "1.5", "--calibration", "{loose}"), "budget 1.5 must be above 0 and below 1"),
        (("--cost", "joules"), "cost 'joules' must be one of parameters, macs"),
        (("--structure", "magic"), "layer blocks.0.attn.qkv: structure kind 'magic' is unknown"),
        (("--calibration", "{out}"), "DATA {out}: no such folder"),
        (("--calibration", "{few}"), "DATA {few}: 10 of 10 images can be read, calibration needs at least 16"),
        (("--calibration", "{none}"), "DATA {none}: no images in it (1 other files)"),
        (("--recover", "{few}"), "DATA {few}: 10 images, a distillation needs at least 16"),
        (("--recover", "{loose}", "--label-weight", "1"), "DATA {loose}: 37 of 37 files fit none of the 3 labels: 00."),
        (("--recover", "{loose}", "--label-weight", "2"), "label_weight 2.0 must be 0 to 1"),
        (("--recover", "{loose}", "--recover-amp", "int8"), "amp 'int8' must be one of"),
    ],
)
def test_compress_refuses_what_cannot_be_done(
    refused: Refused, colour_bundle: Path, loose_photos: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    places = {"out": tmp_path / "out", "few": tmp_path / "few", "none": tmp_path / "none", "loose": loose_photos}
    for name in ("few", "none"):
        places[name].mkdir()
    for path in sorted(loose_photos.iterdir())[10:20]:
        os.link(path, places["few"] / path.name)
    (places["none"] / "notes.txt").write_text("")
    given = [argument.format(**places) for argument in arguments]
    said = refused("compress", colour_bundle, places["out"], *QUICK, *given)
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
        "milkweed: compress: calibrating: 2 of 4 done, 0.2 done/s, 11 s left",
        "milkweed: compress: fitting: 5 of 10 layers, 0.5 layers/s, 11 s left",
    ]
