"""The targets that a search meets, those that it cannot, and what it refuses to begin with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.compress import measure, quantize, search, tokens
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import QuantizationConfig, Recipe
from milkweed.compress.selection import Target, TargetError
from milkweed.compress.write import compress
from milkweed.inference import backend, device
from milkweed.jobs.dataset import DataError
from milkweed.kernels.installation import install_command
from milkweed.models import load_bundle
from milkweed.models.layers.token_plan import TokenMerging
from milkweed.models.programs.session import kernels_refusal
from milkweed.models.progress import Progress

from .conftest import saved

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.slow
def test_what_was_measured_serves_another_target_and_another_folder(
    job: CompressJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, config = compress(job)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "time_in_turns", lambda *_: pytest.fail("nothing is measured again"))
        again, other = compress(replace(job, out=job.out.with_name("other"), target=Target(bytes=1 << 30)))
    assert (again.work, again.models) == (first.work, again.models)
    assert {row["name"] for row in other.metrics["search"]["models"]} <= {
        row["name"] for row in config.metrics["search"]["models"]
    }
    other_batch, _ = compress(replace(job, out=job.out.with_name("batch"), batches=(2,), discard_search=True))
    assert other_batch.work != first.work
    assert (first.work.exists(), other_batch.work.exists()) == (True, False)


@pytest.mark.slow
def test_a_target_out_of_reach_says_what_can(job: CompressJob) -> None:
    with pytest.raises(TargetError, match="a speedup of 1000 over dense cannot be reached: the fastest of"):
        compress(replace(job, target=Target(speedup=1000)))
    assert not job.out.exists()
    _, config = compress(replace(job, target=Target(bytes=1 << 30)))  # what was measured serves the next target
    assert config.metrics["search"]["models"]


@pytest.mark.slow
def test_levers_that_a_model_does_not_take_are_named(job: CompressJob, tmp_path: Path) -> None:
    pooled = saved(tmp_path / "pooled", global_pool="avg")
    notes: list[str] = []
    _, config = compress(replace(job, source=pooled), Progress(note=notes.append))
    assert any(note.startswith("without class token last: ") and "avg" in note for note in notes)
    assert all("class token last" not in row["name"] for row in config.metrics["search"]["models"])


@pytest.mark.slow
def test_a_cnn_is_left_to_int8(job: CompressJob, tmp_path: Path) -> None:
    cnn = saved(tmp_path / "cnn", "test_resnet", {"num_classes": 5})
    _, config = compress(replace(job, source=cnn))
    notes = config.metrics["search"]["notes"]
    assert [note for note in notes if "token" in note] == [
        "ResNet: compressed by NNCF's int8 alone, there are no rules to merge its tokens"
    ]


@pytest.mark.slow
@pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))
def test_a_mixer_is_left_to_int8_of_our_kernels_among_others(
    job: CompressJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "QUANTIZATIONS", (QuantizationConfig(per_channel=True),))
    sizes = {"num_classes": 5, "img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
    job, notes = replace(job, backends=("milkweed", "openvino")), list[str]()
    _, config = compress(
        replace(job, source=saved(tmp_path / "m", "mixer_s32_224", sizes)), Progress(note=notes.append)
    )
    assert "MlpMixer: compressed by int8 alone, there are no rules to merge its tokens" in notes
    assert {"milkweed int8", "openvino float32"} <= {row["computed_by"] for row in config.metrics["search"]["models"]}


@pytest.mark.slow
def test_the_first_schedule_that_keeps_a_speed_is_bisected(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(recipe: Recipe) -> float:
        return 0.0 if recipe.tokens.merging is None else recipe.tokens.merging.share

    schedules = [TokenMerging(1, 1, k / 16, 0.1) for k in range(1, 9)]
    monkeypatch.setattr(search, "mergings", lambda model: schedules)
    monkeypatch.setattr(tokens, "screened_kl", lambda evaluator, recipe, model=None: share(recipe))
    evaluator = measure.CandidateEvaluator
    monkeypatch.setattr(evaluator, "speedup", lambda self, recipe: 1 + 10 * (share(recipe) or 10))
    monkeypatch.setattr(evaluator, "target_speedup", 1 + 10 * 5.5 / 16)
    result, _ = compress(job)
    tried = sorted({16 * share(candidate.recipe) for candidate in result.models if share(candidate.recipe)})
    assert {5.0, 6.0} <= set(tried)  # the last that is too slow, and the first that is not
    assert len(tried) <= 4


@pytest.mark.slow
def test_narrower_layers_meet_a_target_of_bytes(job: CompressJob, vit: Path) -> None:
    whole = sum(each.numel() * 4 for each in load_bundle(vit)[0].state_dict().values())
    _, config = compress(replace(job, target=Target(bytes=int(0.85 * whole))))
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    assert "hidden units" in chosen["name"]
    files = [file for file in job.out.iterdir() if not file.name.startswith("report.")]
    assert 0.7 * whole < chosen["bytes"] <= 0.85 * whole
    assert chosen["bytes"] == config.bytes_on_disk == sum(file.stat().st_size for file in files)
    _, read = load_bundle(job.out)
    assert read.widths == config.widths
    least = min(row["quality"]["kl"]["value"] for row in config.metrics["search"]["models"] if "units" in row["name"])
    assert chosen["quality"]["kl"]["value"] == least


@pytest.mark.slow
def test_fewer_bytes_than_there_can_be_are_refused_with_the_least(job: CompressJob) -> None:
    with pytest.raises(TargetError, match=r"1,000 bytes cannot be reached: .* of \d+ models has .* 5 % of hidden"):
        compress(replace(job, target=Target(bytes=1000)))


@pytest.mark.slow
def test_a_cpu_without_bfloat16_computes_in_float32(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tokens, device):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda _: False)
    _, config = compress(job)
    assert {row["computed_by"] for row in config.metrics["search"]["models"]} == {"torch float32"}


@pytest.mark.slow
def test_a_backend_that_is_missing_is_named(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "runtime_version", lambda name: None)
    notes: list[str] = []
    compress(replace(job, backends=("torch", "openvino")), Progress(note=notes.append))
    assert f"OpenVINO is not installed: {install_command('openvino')}" in notes
    with pytest.raises(backend.BackendError, match="OpenVINO is not installed"):
        compress(replace(job, backends=("openvino",), out=job.out.with_name("other")))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda n: n >= 20, "20 of 20 images can be read, a search needs 32"),
        (None, "answers to 36 images are all the same"),
    ],
)
def test_images_that_teach_nothing_are_refused(
    job: CompressJob, photos: Path, tmp_path: Path, spoil: Callable[[int], bool] | None, said: str
) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for number, path in enumerate(sorted(photos.iterdir())):
        if spoil is None:
            (folder / path.name).write_bytes((photos / "00.png").read_bytes())
        elif not spoil(number):
            (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=said):
        compress(replace(job, images=folder))
