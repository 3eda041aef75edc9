"""The resize gives Pillow's bits, on every instruction set of this CPU."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from milkweed.kernels.cpu.build import build
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import CpuLibraryError, resize_entry
from milkweed.kernels.images import resize as resizing
from milkweed.kernels.images.resize import CroppedAxis, axis, part_read, resize

SIZES = ((500, 375), (1, 1), (2, 300), (300, 2), (37, 41), (640, 97))
TO = ((256, 341), (7, 5), (224, 1), (1, 224), (401, 400))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    build()


def levels(width: int, height: int) -> NDArray[np.uint8]:
    """Noise beside black and white, which overshoot most."""
    random = np.random.default_rng(width * 1000 + height)
    pixels = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
    pixels[height // 2 :] = np.where(pixels[height // 2 :] > 127, 255, 0)
    return pixels


@pytest.mark.parametrize("isa", [each.name for each in supported_sets()])
@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_crop_has_pillows_bits(
    size: tuple[int, int], bilinear: bool, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "resize_entry", partial(resize_entry, isa))
    (width, height), pixels = size, levels(*size)
    how = Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC
    for across, down in TO:
        expected = np.asarray(Image.fromarray(pixels).resize((across, height), how).resize((across, down), how))
        for left, top, right, bottom in ((0, 0, across, down), (across // 3, down // 2, across, down - down // 4)):
            spans = CroppedAxis(width, across, left, right - left), CroppedAxis(height, down, top, bottom - top)
            found = resize(pixels, *spans, bilinear=bilinear)
            assert np.array_equal(found[..., :3], expected[top:bottom, left:right])


def test_pixels_of_any_strides_are_taken_and_of_no_other_shape() -> None:
    pixels = levels(60, 40)
    spans = CroppedAxis(40, 20, 0, 20), CroppedAxis(60, 30, 0, 30)
    turned = resize(pixels.transpose(1, 0, 2), *spans, bilinear=False)
    copied = resize(pixels.transpose(1, 0, 2).copy(), *spans, bilinear=False)
    assert np.array_equal(turned[..., :3], copied[..., :3])
    for wrong in (pixels, pixels.transpose(1, 0, 2)[..., :2], pixels.transpose(1, 0, 2).astype(np.int32)):
        with pytest.raises(ValueError, match="is resized"):
            resize(wrong, *spans, bilinear=False)


def test_only_what_the_axes_name_is_read_and_a_part_without_it_is_refused() -> None:
    pixels, spans = levels(300, 200), (CroppedAxis(300, 90, 31, 20), CroppedAxis(200, 60, 17, 30))
    expected, part = resize(pixels, *spans, bilinear=False), part_read(*spans, bilinear=False)
    assert part.shape[0] < 120
    assert part.shape[1] < 90
    cut = pixels[part.top : part.bottom, part.left : part.right].copy()
    assert np.array_equal(resize(cut, *spans, bilinear=False, part=part)[..., :3], expected[..., :3])
    for side, step in (("left", 1), ("top", 1), ("right", -1), ("bottom", -1)):
        less = part._replace(**{side: getattr(part, side) + step})
        with pytest.raises(ValueError, match="are resized"):
            resize(pixels[less.top : less.bottom, less.left : less.right], *spans, bilinear=False, part=less)


def test_weights_are_of_inputs_that_there_are_and_sum_to_one() -> None:
    for length, resized in ((500, 256), (3, 400), (65535, 7), (1, 9)):
        starts, weights = axis(CroppedAxis(length, resized, 0, resized), False)
        assert starts.min() >= 0
        assert (starts + weights.shape[1]).max() <= length
        assert abs(weights.sum(1) - (1 << resizing.WEIGHT_BITS)).max() <= weights.shape[1]


def test_without_the_library_the_refusal_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CpuLibraryError("the CPU kernels are not built: make cpu-kernels")

    monkeypatch.setattr(resizing, "resize_entry", missing)
    assert resizing.resize_refusal.__wrapped__() == "the CPU kernels are not built: make cpu-kernels"
