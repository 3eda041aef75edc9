"""The study of equal latency: which models it compares, how they are trained, and what it says of a figure."""

from argparse import ArgumentTypeError, Namespace
from functools import partial
from pathlib import Path

import pytest

from milkweed.bench.machine import save
from milkweed.bench.studies.equal_latency import (
    Variant,
    interval,
    job_of,
    latencies,
    pairs_of,
    picture,
    recorded,
    trained,
    variants_of,
)
from milkweed.models import save_bundle
from milkweed.models.layers.select import layer_specs_of
from milkweed.models.progress import SILENT
from milkweed.models.report.drawing import save_picture

from ...models.tiny import config_of

OPTIONS = Namespace(device="cpu", epochs=2, depth=1, train=Path("train"), held_out=Path("held_out"))
DENSE, MONARCH, BY_FACTOR = variants_of([(64, 128)])


def test_models_differ_in_what_is_compared_alone(tmp_path: Path) -> None:
    jobs = [job_of(variant, 0, Namespace(**vars(OPTIONS), work=tmp_path)) for variant in (DENSE, MONARCH, BY_FACTOR)]
    assert [job.out.name for job in jobs] == ["dense64", "monarch128", "monarch128lr"]
    assert [job.recipe.structured_lr for job in jobs] == [False, False, True]
    assert len({str({**job.recipe.to_dict(), "structured_lr": None}) for job in jobs}) == 1
    assert len(layer_specs_of(MONARCH.model(1))) == 4
    assert not layer_specs_of(DENSE.model(1))


@pytest.mark.slow
def test_all_are_timed() -> None:
    ms = latencies([DENSE, MONARCH], 1, seconds=0.0)
    assert list(ms) == ["dense64", "monarch128"]
    assert min(ms.values()) > 0


def test_what_is_trained_already_is_read(tmp_path: Path) -> None:
    job = job_of(Variant(64), 3, Namespace(**vars(OPTIONS), work=tmp_path))
    model = Variant(64).model(1)
    config = config_of(
        model,
        "vit_tiny_patch16_224",
        Variant(64).arch_args(1),
        10,
        metrics={"training": {"held_out": {"top1": 61.0, "images": 10000}}},
        provenance={"commands": [{"command": "train", "seconds": 5400.0}]},
    )
    save_bundle(tmp_path / "dense64-3", model, config)
    assert trained(job, SILENT) == {"top1": 61.0, "images": 10000, "hours": 1.5, "structured_layers": 0}


def test_intervals_and_pairs() -> None:
    assert interval(80.0, 10000) == pytest.approx((79.216, 80.784))
    assert pairs_of("192:256,384:576") == [(192, 256), (384, 576)]
    for text, said in (
        ("192", "pairs of widths"),
        ("192:x", "pairs of widths"),
        ("192:250", "width 250: a multiple of 64"),
    ):
        with pytest.raises(ArgumentTypeError, match=said):
            pairs_of(text)


def test_rows_of_another_machine_stay(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = Namespace(out=file, epochs=2, depth=1)
    assert recorded(options) == {}
    row = {"name": "dense64", "seed": 3, "top1": 61.0}
    save(file, {"epochs": 2, "depth": 1, "rows": [row]})
    assert recorded(options) == {("dense64", 3): row}
    options.epochs = 3
    with pytest.raises(SystemExit, match="rows of 2 epochs and 1 blocks"):
        recorded(options)


def test_the_picture_has_every_row(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `train` is not installed")
    rows = [
        {"name": name, "ms": ms, "top1": top1, "low": top1 - 1, "high": top1 + 1}
        for name, ms, top1 in (("dense64", 1.0, 60.0), ("monarch128", 1.01, 60.5), ("monarch128lr", 1.02, 61.0))
    ]
    text = save_picture(partial(picture, rows, 4), tmp_path / "a.svg").read_text()
    assert [text.count(f">{row['name']}<") for row in rows] == [1, 1, 1]
