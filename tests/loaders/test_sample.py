"""The 500 photographs: the reference equals timm, the fast loader and DALI agree with the reference."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders import CpuLoader, PillowLoader, PreprocessSpec

IGNORE = PreprocessSpec(orientation="ignore")


@pytest.fixture(scope="module")
def photos(shared: Path) -> list[bytes]:
    folder = shared / "data" / "imagenet-sample"
    bodies = [path.read_bytes() for path in sorted(folder.glob("*.JPEG"))]
    if not bodies:
        pytest.skip(f"no photographs in {folder}")
    return bodies


@pytest.fixture(scope="module")
def timm_load() -> Callable[[bytes], torch.Tensor]:
    transform = pytest.importorskip("timm.data").create_transform(
        224, interpolation="bicubic", crop_pct=0.875, is_training=False
    )
    return lambda body: transform(Image.open(BytesIO(body)).convert("RGB"))


@pytest.mark.slow
def test_loaders_agree_with_timm_on_every_photo(photos, timm_load):
    pillow, cpu = PillowLoader(IGNORE), CpuLoader(IGNORE)
    for body in photos:
        expected = timm_load(body).numpy()
        assert np.array_equal(pillow.load([body]).pixels[0], expected)
        assert np.array_equal(cpu.load([body]).pixels[0], expected)


def test_upright_photos_agree_too(photos, levels):
    # one photograph of the sample lies on its side
    spec = PreprocessSpec()
    turned = [body for body in photos if _orientation(body) != 1]
    for body in turned:
        assert np.array_equal(levels(CpuLoader(spec), body, spec), levels(PillowLoader(spec), body, spec))


def _orientation(body: bytes) -> int:
    return Image.open(BytesIO(body)).getexif().get(0x0112, 1)


@pytest.mark.slow
def test_dali_agrees_with_the_reference_on_every_photo(photos):
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader
    from milkweed.loaders.decode.dali_graph import DaliOptions

    spec = PreprocessSpec()
    exact, fused = (DaliLoader(spec, num_threads=2, options=DaliOptions(resample=how)) for how in ("exact", "fused"))
    level = np.array(spec.std)[:, None, None] * 255
    through_dali = 0
    for first in range(0, len(photos), 50):
        part = photos[first : first + 50]
        wanted = PillowLoader(spec).load(part).pixels
        for loader, mean, most in ((exact, 0.15, 8), (fused, 0.3, 32)):
            result = loader.load(part)
            assert not result.errors
            off = abs((result.pixels - wanted) * level)
            assert float(off.mean((1, 2, 3)).max()) <= mean
            assert round(float(off.max()), 2) <= most
            through_dali += result.decoders.count("dali")
    assert through_dali > 0.9 * 2 * len(photos)
    exact.close()
    fused.close()
