"""Tests `milkweed convert`, and what other commands and a server say of a bundle in fewer bits."""

import shutil
from pathlib import Path

import pytest
import torch

from milkweed.cli.modelling.convert import UNMEASURED
from milkweed.models import load_bundle, read_config, resident_bytes
from milkweed.models.serving.prepare import prepare_for_inference
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from ...models.structured import project_bundle
from ...support.command import Milkweed

CPU = ("--device", "cpu")


def test_convert_measures_accuracy_before_and_after(
    milkweed: Milkweed, colour_bundle: Path, colour_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = milkweed("convert", colour_bundle, out, "--storage", "int8", "--evaluate", colour_photos, *CPU, "--json")
    assert (ran.code, ran.err) == (0, "")
    document = ran.document
    config = read_config(out)
    assert (document["version"], document["storage"]) == (config.version, dict(config.storage))
    assert (document["bytes_before"], document["bytes_on_disk"]) == (
        read_config(colour_bundle).bytes_on_disk,
        sum(file.stat().st_size for file in out.iterdir()),
    )
    measured = document["measured"]
    assert measured == config.metrics["storage"]
    assert measured["images"] == {"folder": colour_photos.name, "count": 36}
    for bundle, found in ((colour_bundle, measured["before"]), (out, measured["after"])):
        assert found["top1"] == pytest.approx(milkweed("evaluate", bundle, colour_photos, "--json").document["top1"])
    ran = milkweed("convert", colour_bundle, out, "--storage", "int8", "--evaluate", colour_photos, *CPU, "--force")
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines["bundle"] == f"{out} (version {config.version})"
    assert lines["weights"] == "int8 in 6 layers"
    assert lines["int8"].startswith("a layer's outputs are off by at most 0.0")
    assert lines["int8"].endswith(", tried on 36 images")
    assert lines["measured"].startswith("36 images: KL 0.0")
    assert f"top-1 {measured['before']['top1']:.2f} -> {measured['after']['top1']:.2f} %" in lines["measured"]
    assert "warning" not in lines


def test_convert_measures_on_images_without_labels(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = milkweed("convert", colour_bundle, out, "--storage", "float16", "--images", loose_photos, *CPU)
    assert ran.code == 0
    assert ran.err.count("skipped ") == 1
    assert "/07-cut.png: undecodable: " in ran.err
    assert "measured  36 images: KL 0.0000" in ran.out
    assert "top-1" not in ran.out
    assert read_config(out).metrics["storage"]["accuracy"] == "not measured"
    ran = milkweed(
        "convert", colour_bundle, out, "--storage", "int8", "--images", loose_photos, "--limit", 4, "--force", *CPU
    )
    assert "measured  4 images: KL " in ran.out


def test_convert_without_images_measures_nothing_and_says_so(
    milkweed: Milkweed, colour_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = milkweed("convert", colour_bundle, out, "--storage", "int8", "--int8-limit", 0, *CPU)
    assert (ran.code, ran.err) == (0, "")
    assert "measured  nothing\n" in ran.out
    assert f"warning   {UNMEASURED}\n" in ran.out
    assert "weights   bfloat16 in 6 layers\n" in ran.out
    assert "bfloat16  where int8 is off by more than 0: patch_embed.proj (0.0" in ran.out
    assert "blocks.0.mlp.fc2 (0.0" in ran.out
    assert ran.out.count(" and 1 more\n") == 1
    fields = (line.split(maxsplit=1) for line in milkweed("inspect", out).out.splitlines() if "storage." in line)
    shown = dict(field for field in fields if len(field) == 2)
    assert shown["storage.accuracy"] == "not measured"
    assert shown["storage.int8.kept_bfloat16.head"].startswith("0.0")
    # up again: not what it was
    ran = milkweed("convert", out, out, "--storage", "float32", "--force", *CPU)
    assert "weights   float32; they were bfloat16 in 6 layers, and what that rounded stays rounded\n" in ran.out


@pytest.mark.slow
def test_inspect_and_the_server_count_the_bytes_there_are(milkweed: Milkweed, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert milkweed("convert", bundle, out, "--storage", "int8", "--int8-limit", 1, *CPU).code == 0
    before, after = (milkweed("inspect", path, "--json").document for path in (bundle, out))
    assert after["storage"] == dict(read_config(out).storage)
    assert before["storage"] == {}
    assert after["bytes"]["on_disk"] == sum(file.stat().st_size for file in out.iterdir())
    assert after["bytes"]["resident"] < 0.5 * before["bytes"]["resident"]
    assert after["parameters"] == before["parameters"]
    assert after["macs"] == before["macs"]
    assert after["bytes"]["dense_equivalent"] == before["bytes"]["dense_equivalent"]
    text = milkweed("inspect", out).out
    assert "(int8 and float32), on disk " in text
    assert f"weights        int8 in {len(after['storage'])} layers on disk\n" in text
    assert "weights        float32 on disk\n" in milkweed("inspect", bundle).out

    model = open_model("tiny", out, Settings(device="cpu", cpu_graphs=True))
    try:
        assert model.pipeline.forward_stage.traced is not None
        assert model.pipeline.forward_stage.traced.reason is None
        described = model.describe()
        assert described["storage"] == {"int8": len(after["storage"])}
        assert described["parameter_bytes"] == {
            "dense_equivalent": after["bytes"]["dense_equivalent"],
            "resident": after["bytes"]["resident"],
            "on_disk": after["bytes"]["on_disk"],
        }
        pixels = torch.randn(3, 3, 32, 32)
        served = model.pipeline.forward_stage.run(pixels).probabilities
    finally:
        model.pipeline.close()
    expanded = prepare_for_inference(load_bundle(out)[0])
    assert resident_bytes(expanded) == before["bytes"]["resident"]
    with torch.inference_mode():
        torch.testing.assert_close(served, expanded(pixels).softmax(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("no_page")
def test_other_commands_read_a_converted_bundle_and_write_float32(
    milkweed: Milkweed, bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert milkweed("convert", bundle, out, "--storage", "float16", *CPU).code == 0
    assert milkweed("densify", out, tmp_path / "dense").code == 0
    assert read_config(tmp_path / "dense").storage == {}
    project_bundle(out, tmp_path / "less", ("proj",))
    assert milkweed("convert", tmp_path / "less", tmp_path / "few", "--storage", "bfloat16", *CPU).code == 0
    config = read_config(tmp_path / "few")
    assert set(config.storage.values()) == {"bfloat16"}
    assert config.metrics["storage"] == {"weights": "bfloat16", "accuracy": "not measured"}
    assert len(config.structure) == 6


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("--storage", "int4"),
            2,
            "invalid value for '--storage': 'int4': must be one of float32, bfloat16, float16, ",
        ),
        ((), 2, "missing option '--storage'"),
        (("--storage", "int8", "--int8-limit", "-1"), 2, "invalid value for '--int8-limit': -1: must be at least 0"),
        (("--storage", "int8", "--limit", "0"), 2, "invalid value for '--limit': 0: must be at least 1"),
        (("--storage", "int8", "--int8-limit", "inf"), 1, "int8 limit inf must be a number from 0 on"),
        (("--storage", "int8", "--images", "{none}"), 1, "DATA {none}: no images in it (1 other files)"),
        (("--storage", "int8", "--images", "{cut}"), 1, "DATA {cut}: none of 1 images can be read"),
        (("--storage", "bfloat16", "--images", "{cut}"), 1, "DATA {cut}: none of 1 images can be read"),
        (("--storage", "int8", "--evaluate", "{loose}"), 1, "DATA {loose}: 37 of 37 files fit none of the 3 labels: "),
        (("--storage", "int8", "--evaluate", "{out}"), 1, "DATA {out}: no such folder"),
    ],
)
def test_convert_refuses_what_cannot_be_done(
    milkweed: Milkweed,
    colour_bundle: Path,
    loose_photos: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    places = {"out": tmp_path / "out", "cut": tmp_path / "cut", "none": tmp_path / "none", "loose": loose_photos}
    for name in ("cut", "none"):
        places[name].mkdir()
    shutil.copy(loose_photos / "07-cut.png", places["cut"])
    (places["none"] / "notes.txt").write_text("")
    ran = milkweed("convert", colour_bundle, places["out"], *CPU, *(part.format(**places) for part in arguments))
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.splitlines()[-1].startswith(f"milkweed: error: {message.format(**places)}"), ran.err
    assert not places["out"].exists()
