"""The contract of the loaders on edge cases, and batches with bad images: who is good gets its pixels to the bit."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from milkweed.bench.bodies import BAD_KINDS
from milkweed.loaders import CpuLoader, Loader, PillowLoader, PreprocessSpec, validate

SPEC = PreprocessSpec()
LIMITS = {"cpu": (0.05, 8.0), "dali exact": (0.15, 8.0), "dali fused": (0.3, 32.0)}
"""Levels 0..255: an image's mean and a pixel may be so far from the reference; docs/images.md has the same."""


# Odd margins on either axis, portrait, just the crop, and small enough to be enlarged.
EDGE_SIZES = (
    *((500, 375), (375, 500), (333, 251), (257, 256), (1023, 257), (301, 299), (259, 777), (225, 224)),
    *((97, 61), (16, 16), (5, 9)),
)
SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")


@pytest.fixture(params=LIMITS)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, Loader]]:
    name = str(request.param)
    if name == "cpu":
        yield name, CpuLoader(SPEC)
        return
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader
    from milkweed.loaders.decode.dali_graph import DaliOptions

    loader = DaliLoader(SPEC, options=DaliOptions(resample=name.removeprefix("dali "), max_batch=32))
    yield name, loader
    loader.close()


@pytest.fixture(scope="module")
def edge_cases(picture: Callable[..., Image.Image], encoded: Callable[..., bytes]) -> dict[str, bytes]:
    """JPEGs by name: each size in each sampling, and the eight orientations."""
    cases = {}
    for width, height in EDGE_SIZES:
        for sampling in SAMPLINGS:
            mode, colours = ("L", "GRAY") if sampling == "Gray" else ("RGB", "RGB")
            levels = np.atleast_3d(np.asarray(picture(width, height).convert(mode)))
            body = simplejpeg.encode_jpeg(np.ascontiguousarray(levels), 90, colours, sampling)
            cases[f"{width}x{height} {sampling}"] = body
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        cases[f"orientation {orientation}"] = encoded(picture(411, 300, orientation), "JPEG", exif=exif)
    return cases


def test_every_size_sampling_and_orientation_is_the_references(
    named: tuple[str, Loader], edge_cases: dict[str, bytes]
) -> None:
    name, loader = named
    mean, largest = LIMITS[name]
    for what, body in edge_cases.items():  # the cases are what they are called
        info = validate(body)
        sides, _, sampling = what.partition(" ")
        if "x" in sides:
            assert (sides, sampling == "Gray") == (f"{info.width}x{info.height}", info.mode == "L")
        else:
            assert what == f"orientation {info.orientation}"
    bodies = list(edge_cases.values())
    for first in range(0, len(bodies), 32):
        found, wanted = (each.load(bodies[first : first + 32]) for each in (loader, PillowLoader(SPEC)))
        assert found.errors == wanted.errors == {}
        off = abs(found.pixels - wanted.pixels) * np.array(SPEC.std)[:, None, None] * 255
        assert float(off.mean((1, 2, 3)).max()) <= mean
        assert round(float(off.max()), 2) <= largest


@pytest.mark.parametrize("kind", BAD_KINDS)
@pytest.mark.slow_beyond(6)
def test_eight_bad_images_of_32_harm_nobody(
    named: tuple[str, Loader], kind: str, picture: Callable, encoded: Callable[..., bytes]
) -> None:
    _, loader = named
    clean = [encoded(picture(160 + seed, 120, seed), "JPEG") for seed in range(32)]
    bad = [BAD_KINDS[kind](body, at // 4) if at % 4 == 3 else body for at, body in enumerate(clean)]
    wanted, alone, found = PillowLoader(SPEC).load(bad), loader.load(clean), loader.load(bad)
    # Random bytes in the coded data may still be a picture, which then is the reference's too.
    assert len(wanted.errors) == 8 or kind == "scan overwritten"
    assert {at: error.code for at, error in found.errors.items()} == {
        at: error.code for at, error in wanted.errors.items()
    }
    good = [at for at in range(32) if at % 4 != 3]
    places = {at: place for place, at in enumerate(found.ok)}
    pixels = np.stack([found.pixels[places[at]] for at in good])
    assert np.array_equal(pixels, alone.pixels[good])
