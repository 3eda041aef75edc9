"""The geometry against round() of Python (half to even) and torchvision, and the spec as data."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.loaders import Geometry, PreprocessSpec, geometry
from milkweed.loaders.preprocess.spec import jpeg_scale

SIDES = st.integers(1, 16384)


@given(SIDES, SIDES, st.integers(32, 518), st.sampled_from([0.875, 0.9, 0.95, 1.0]))
def test_geometry_is_truncated_resize_and_half_even_crop(width, height, size, crop_pct):
    short = math.floor(size / crop_pct)
    if width <= height:
        expected = (short, int(short * height / width))
    else:
        expected = (int(short * width / height), short)
    found = geometry(PreprocessSpec(size=size, crop_pct=crop_pct), width, height)
    assert (found.resize_width, found.resize_height) == expected
    assert found.left == round((expected[0] - size) / 2)
    assert found.top == round((expected[1] - size) / 2)


@given(SIDES, SIDES, st.sampled_from([0.875, 0.95, 1.0]))
def test_geometry_is_torchvisions(width, height, crop_pct):
    functional = pytest.importorskip("torchvision.transforms.functional")
    resized = functional._compute_resized_output_size((height, width), [math.floor(224 / crop_pct)])
    found = geometry(PreprocessSpec(crop_pct=crop_pct), width, height)
    assert [found.resize_height, found.resize_width] == resized


@given(SIDES, SIDES, st.integers(8, 518), st.floats(0.2, 1.0))
def test_crop_lies_inside_when_the_picture_is_not_padded(width, height, size, crop_pct):
    found = geometry(PreprocessSpec(size=size, crop_pct=crop_pct), width, height)
    assert 0 <= found.left <= found.resize_width - size
    assert 0 <= found.top <= found.resize_height - size


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (500, 375, Geometry(341, 256, 58, 16, 224)),  # 58.5 rounds to the even 58
        (375, 500, Geometry(256, 341, 16, 58, 224)),
        (333, 500, Geometry(256, 384, 16, 80, 224)),
        (1, 1, Geometry(256, 256, 16, 16, 224)),
        (8000, 2, Geometry(1024000, 256, 511888, 16, 224)),
    ],
)
def test_geometry_of_known_sizes(width, height, expected):
    assert geometry(PreprocessSpec(), width, height) == expected


def test_crop_larger_than_resized_is_padded_as_timm_does():
    assert geometry(PreprocessSpec(size=101, crop_pct=2.0), 10, 10) == Geometry(50, 50, -25, -25, 101)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (500, 375, 1),
        (1024, 1365, 2),
        (1365, 1023, 1),
        (4032, 3024, 4),
        (3024, 4032, 4),
        (4096, 4096, 8),
        (9000, 300, 1),
    ],
)
def test_a_scaled_jpeg_keeps_twice_the_target(width, height, expected):
    assert jpeg_scale(PreprocessSpec(jpeg_scaling="fast"), width, height) == expected
    assert jpeg_scale(PreprocessSpec(), width, height) == 1


def test_spec_survives_json():
    spec = PreprocessSpec(size=32, crop_pct=1.0, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert PreprocessSpec.from_dict(spec.to_dict()) == spec
    assert isinstance(spec.to_dict()["mean"], list)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": 224.5}, "size is 224.5"),
        ({"crop_pct": 0.0}, "crop_pct is 0.0"),
        ({"interpolation": "lanczos"}, "'lanczos'"),
        ({"orientation": "maybe"}, "'maybe'"),
        ({"jpeg_scaling": "half"}, "'half': expected exact or fast"),
        ({"mean": [0.5, 0.5]}, "mean"),
        ({"std": [0.5, 0.0, 0.5]}, "std"),
        ({"mean": "abc"}, "mean is 'abc'"),
        ({"crop": 1}, "unknown preprocess key 'crop'"),
    ],
)
def test_spec_names_the_bad_value(values, said):
    with pytest.raises(ValueError, match=said):
        PreprocessSpec.from_dict(values)
