"""Training batches: a function of seed, epoch and step, whoever makes them; what cannot be read is named."""

import gc
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders.dataset import augmentation
from milkweed.loaders.dataset.augmentation import Augmentation
from milkweed.loaders.dataset.counter_rng import epoch_order, random_uniform
from milkweed.loaders.dataset.evaluation import PreparedImages
from milkweed.loaders.dataset.training import Sample, TrainingImages
from milkweed.loaders.decode.cpu import CpuLoader
from milkweed.loaders.preprocess.spec import PreprocessSpec

SPEC = PreprocessSpec(16, 1.0, "bicubic", (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
STRONG = Augmentation(crop="resized", randaugment="rand-m9-mstd0.5", color_jitter=0.3, erase=0.5)
NOTHING = Augmentation(crop="none", flip=False)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Twenty PNGs of 20x16 px of noise, in four classes."""
    folder = tmp_path_factory.mktemp("images")
    made: list[Sample] = []
    for index in range(20):
        levels = np.random.default_rng(index).integers(0, 256, (16, 20, 3), dtype=np.uint8)
        path = folder / f"{index:02d}.png"
        Image.fromarray(levels).save(path)
        made.append((path, index % 4))
    return made


def all_batches(source: TrainingImages, epoch: int = 0, start: int = 0) -> list[torch.Tensor]:
    return [images for images, _ in source.batches(epoch, start)]


@pytest.mark.parametrize("augmentation", [Augmentation(crop="pad"), STRONG], ids=["pad", "strong"])
def test_batches_do_not_depend_on_who_makes_them(samples: list[Sample], augmentation: Augmentation) -> None:
    cached = TrainingImages(samples, SPEC, augmentation, batch_size=6, seed=3)
    wanted = all_batches(cached, 1)
    assert cached.steps == len(wanted) == 3
    assert cached.cached
    decoding = TrainingImages(samples, SPEC, augmentation, batch_size=6, seed=3, cache_bytes=0)
    assert not decoding.cached
    random.seed(9)
    torch.manual_seed(9)
    for got in (all_batches(decoding, 1), all_batches(cached, 1)):
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert torch.equal(all_batches(cached, 1, start=2)[0], wanted[2])
    halves = [TrainingImages(samples, SPEC, augmentation, batch_size=6, seed=3, rank=r, processes=2) for r in (0, 1)]
    for batch, first, second in zip(wanted, *(all_batches(half, 1) for half in halves), strict=True):
        assert torch.equal(batch[0::2], first)
        assert torch.equal(batch[1::2], second)
    assert not torch.equal(all_batches(cached, 2)[0], wanted[0])


def test_worker_processes_make_the_same_batches(samples: list[Sample]) -> None:
    plain = TrainingImages(samples, SPEC, STRONG, batch_size=6)
    working = TrainingImages(samples, SPEC, STRONG, batch_size=6, workers=1)
    for (one, first), (two, second) in zip(plain.batches(0, 1), working.batches(0, 1), strict=True):
        assert torch.equal(one, two)
        assert first is not None
        assert second is not None
        assert torch.equal(first, second)


class Ended:
    """Garbage that only the collector finds, and that tells which process ended it."""

    def __init__(self, told: Path) -> None:
        self.itself, self.told = self, told

    def __del__(self) -> None:
        self.told.write_text(str(os.getpid()))


def test_what_is_garbage_before_a_worker_is_forked_is_not_ended_in_it(samples: list[Sample], tmp_path: Path) -> None:
    gc.disable()
    try:
        Ended(tmp_path / "told")
        next(TrainingImages(samples, SPEC, NOTHING, batch_size=6, workers=1).batches(0, 0))
        assert (tmp_path / "told").read_text() == str(os.getpid())
    finally:
        gc.enable()


def test_without_augmentation_images_are_those_of_the_serving_loader(samples: list[Sample]) -> None:
    source = TrainingImages(samples, SPEC, NOTHING, batch_size=20)
    loader = CpuLoader(SPEC)
    wanted = torch.from_numpy(loader.load([path.read_bytes() for path, _ in samples]).pixels)
    loader.close()
    ((images, targets),) = source.batches(0, 0)
    order = epoch_order(0, 0, 20)
    assert sorted(order.tolist()) == list(range(20))
    torch.testing.assert_close(images, wanted[torch.from_numpy(order)], rtol=0, atol=1e-6)
    assert targets is not None
    assert targets.tolist() == [samples[index][1] for index in order]
    prepared = torch.cat([batch for batch, _ in PreparedImages(samples, SPEC, 7)])
    torch.testing.assert_close(prepared, wanted, rtol=0, atol=1e-6)


def test_pad_moves_and_flips_the_image(samples: list[Sample]) -> None:
    source = TrainingImages(samples[:1], SPEC, Augmentation(crop="pad"), batch_size=1, seed=5)
    ((plain, _),) = TrainingImages(samples[:1], SPEC, NOTHING, batch_size=1).batches(0, 0)
    padded = torch.nn.functional.pad(plain, (2, 2, 2, 2), mode="reflect")[0]
    seen = set()
    for epoch in range(30):
        ((moved, _),) = source.batches(epoch, 0)
        flip, top, left = random_uniform(5, epoch, np.array([0]), 3)[0]
        wanted = padded[:, int(top * 5) : int(top * 5) + 16, int(left * 5) : int(left * 5) + 16]
        wanted = wanted.flip(2) if flip < 0.5 else wanted
        torch.testing.assert_close(moved[0], wanted, rtol=0, atol=1e-6)
        seen.add((flip < 0.5, int(top * 5), int(left * 5)))
    assert {place for place, _, _ in seen} == {False, True}
    assert {top for _, top, _ in seen} == {left for _, _, left in seen} == {0, 1, 2, 3, 4}


def test_numbers_are_uniform_and_unrelated() -> None:
    numbers = random_uniform(1, 2, np.arange(20_000), 3)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers[:, 1], bins=20, range=(0, 1))[0]
    assert abs(counts - 1000).max() < 150
    assert abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers[:, 0], random_uniform(1, 3, np.arange(20_000), 3)[:, 0])[0, 1]) < 0.03
    assert np.array_equal(random_uniform(1, 2, np.array([7]), 3)[0], numbers[7])


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_unreadable_images_are_named_and_replaced(samples: list[Sample], tmp_path: Path, cache_bytes: int) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(samples[0][0].read_bytes()[:200])
    missing = tmp_path / "missing.png"
    mixed = [(broken, 0), *samples[:4], (missing, 1), *samples[4:8]]
    source = TrainingImages(mixed, SPEC, NOTHING, batch_size=5, cache_bytes=cache_bytes)
    got = [image for batch in all_batches(source) for image in batch]
    assert source.skipped.keys() == {broken, missing}
    assert source.skipped[missing].message == "cannot be read: No such file or directory"
    assert source.skipped[broken].code == "undecodable"
    readable = torch.cat([batch for batch, _ in PreparedImages(samples[:8], SPEC, 8)])
    assert all(any(torch.equal(image, other) for other in readable) for image in got)
    prepared = PreparedImages(mixed, SPEC, 3)
    assert sum(len(batch) for batch, _ in prepared) == sum(len(batch) for batch, _ in prepared) == 8
    assert prepared.skipped.keys() == {broken, missing}


def test_settings_that_cannot_work_are_refused(samples: list[Sample], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of 1 images can be read"):
        TrainingImages([(tmp_path / "none.png", 0)], SPEC, NOTHING, batch_size=1)
    with pytest.raises(ValueError, match="batch_size 5 cannot be shared by 2 processes evenly"):
        TrainingImages(samples, SPEC, NOTHING, batch_size=5, processes=2)
    with pytest.raises(ValueError, match="crop 'round' must be one of resized, pad, none"):
        Augmentation(crop="round")
    with pytest.raises(ValueError, match="randaugment 'strong' is not as timm spells it"):
        TrainingImages(samples, SPEC, Augmentation(randaugment="strong"), batch_size=1)


@pytest.mark.parametrize("spec", ["rand-m0", "rand-m10-inc1"])  # both would keep no bit of a colour
def test_the_strongest_posterize_keeps_a_bit(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data import auto_augment

    for names in ("_RAND_TRANSFORMS", "_RAND_INCREASING_TRANSFORMS"):
        only = [name for name in getattr(auto_augment, names) if name.startswith("Posterize")]
        monkeypatch.setattr(auto_augment, names, only)
    change: Any = augmentation._colour_changes(Augmentation(randaugment=spec), SPEC)
    image = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    found = {tuple(np.asarray(change(image)).ravel()) for _ in range(60)}
    assert found <= {tuple(np.asarray(image).ravel()), tuple((np.asarray(image) & 128).ravel())}
    assert len(found) == 2  # it is applied with a probability


def test_erasing_and_colours_change_what_they_should(samples: list[Sample]) -> None:
    ((plain, _),) = TrainingImages(samples, SPEC, NOTHING, batch_size=20).batches(0, 0)
    erasing = Augmentation(crop="none", flip=False, erase=1.0)
    ((erased, _),) = TrainingImages(samples, SPEC, erasing, batch_size=20).batches(0, 0)
    changed = (erased != plain).any(1).float().mean((1, 2))
    assert float(changed.min()) >= 0.02
    assert float(changed.max()) <= 0.4  # timm's boxes are 2 to a third of the area
    blur = Augmentation(crop="none", flip=False, blur=0.5)
    ((blurred, _),) = TrainingImages(samples, SPEC, blur, batch_size=20).batches(0, 0)
    softened = (blurred != plain).flatten(1).any(1)
    assert 4 <= int(softened.sum()) <= 16
    assert (blurred.diff(dim=3).abs().mean((1, 2, 3)) < plain.diff(dim=3).abs().mean((1, 2, 3)))[softened].all()
    jitter = Augmentation(crop="none", flip=False, color_jitter=0.4)
    ((jittered, _),) = TrainingImages(samples, SPEC, jitter, batch_size=20).batches(0, 0)
    assert (jittered != plain).flatten(1).any(1).all()
    # contrast and saturation aside, a change of brightness keeps the order of levels
    correlation = np.corrcoef(jittered[0, 0].flatten(), plain[0, 0].flatten())[0, 1]
    assert correlation > 0.8
