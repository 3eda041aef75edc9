"""The day on a GPU: every step can be asked for, none runs twice, and the table says what each round measured."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench import gpu, gpu_day
from milkweed.bench.cuda.report import at_least, at_most
from milkweed.bench.gpu_day import Step, main, steps


def ran(monkeypatch: pytest.MonkeyPatch, goals: list[dict[str, Any]], said: str = "done") -> list[str]:
    """Steps that write these goals instead of measuring; their files as they run."""
    names: list[str] = []

    def run(step: Step, path: Path) -> str:
        names.append(path.stem)
        path.write_text(json.dumps({"goals": goals if step.name == "kernels" else []}))
        return said

    monkeypatch.setattr(gpu_day, "run_step", run)
    return names


def all_steps(out: Path) -> list[Step]:
    nothing = dict.fromkeys(("photos", "bundle", "bad", "cifar10", "steps", "dry_run"))
    return steps(Namespace(out=out, round=1, **nothing))


def test_what_is_measured_is_not_measured_again_and_rounds_stand_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--out", str(tmp_path)]
    names = ran(monkeypatch, [at_least("MLP: over dense", 2.0, 2.5, "x"), at_most("weights", 0.45, 0.5)])
    assert main([*command, "--steps", "kernels", "parts"]) == 0
    assert names == ["kernels", "parts"]
    assert main(command) == 0
    assert names[2:] == [step.name for step in all_steps(tmp_path) if step.name not in ("kernels", "parts")]
    names = ran(monkeypatch, [at_least("MLP: over dense", 2.0, 1.9, "x"), at_most("weights", 0.45, 0.4)])
    assert main([*command, "--steps", "kernels", "--round", "2"]) == 0
    assert names == ["kernels.round2"]
    assert (tmp_path / "README.md").read_text().splitlines()[-2:] == [
        "| MLP: over dense | 2.0x | 2.5 / 1.9 | yes / no | `kernels.json`, `kernels.round2.json` |",
        "| weights | at most 0.45 | 0.5 / 0.4 | no / yes | `kernels.json`, `kernels.round2.json` |",
    ]


def test_a_step_that_fails_is_told_and_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, [], said="ended with 1: see its output")
    assert main(["--out", str(tmp_path), "--steps", "kernels"]) == 1
    assert (tmp_path / "kernels.json").exists()
    names = ran(monkeypatch, [])
    assert main(["--out", str(tmp_path), "--steps", "kernels"]) == 0
    assert main(["--out", str(tmp_path), "--steps", "kernels"]) == 0
    assert names == ["kernels"]


def test_an_unknown_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--steps", "kernals"])
    assert "--steps kernals: expected some of tests, kernels, vit" in capsys.readouterr().err


def test_every_section_and_part_has_a_step(tmp_path: Path) -> None:
    """Each step's arguments are those of the command it calls."""
    asked = [gpu._parser().parse_args(step.command[1:]) for step in all_steps(tmp_path) if "gpu" in step.command[0]]
    assert {name for each in asked for name in each.sections} == set(gpu.SECTIONS)
    images = [each for each in asked if each.sections == ["images"]]
    assert sorted(name for each in images for name in each.parts) == sorted(gpu.IMAGE_PARTS)
    models = [name for each in asked if each.sections == ["model"] for name in each.models]
    assert sorted(models) == sorted({arch for arch, _ in gpu.MODELS})


def test_a_step_is_a_process_and_its_file(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--dry-run", "--steps", "preset"]) == 0
    document = json.loads((tmp_path / "preset.json").read_text())
    assert list(document["tuned_seconds"]) == ["deit_tiny_patch16_224 Monarch mlp"]
    assert list(json.loads((tmp_path / "steps.json").read_text())) == ["preset"]
    assert "A dry run" in (tmp_path / "README.md").read_text()
