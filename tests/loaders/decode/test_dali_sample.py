"""The equality contract on all 500 photographs, for DALI in two passes and in one."""

from pathlib import Path

import pytest
import torch

from milkweed.loaders import PillowLoader, PreprocessSpec

pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
from milkweed.loaders.decode.dali import DaliLoader

SPEC = PreprocessSpec()


def test_dali_agrees_with_the_reference_on_every_photo(shared: Path):
    bodies = [path.read_bytes() for path in sorted((shared / "data" / "imagenet-sample").glob("*.JPEG"))]
    if not bodies:
        pytest.skip("no photographs")
    exact, fused = DaliLoader(SPEC, num_threads=2, max_batch=50), DaliLoader(SPEC, num_threads=2, resample="fused")
    reference = PillowLoader(SPEC)
    level = torch.tensor(SPEC.std).view(3, 1, 1) * 255
    through_dali = 0
    for first in range(0, len(bodies), 50):
        part = bodies[first : first + 50]
        wanted = reference.load(part).pixels
        for loader, mean, most in ((exact, 0.15, 8), (fused, 0.3, 32)):
            result = loader.load(part)
            assert not result.errors
            off = ((result.pixels - wanted) * level).abs()
            assert float(off.mean((1, 2, 3)).max()) <= mean
            assert round(float(off.max()), 2) <= most
            through_dali += result.decoders.count("dali")
    assert through_dali > 0.9 * 2 * len(bodies)
    exact.close()
    fused.close()
