"""The DALI loader on the CPU: the pixels of the reference, and no bad image that harms its neighbours."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders import CpuLoader, PillowLoader, PreprocessSpec, create_loader, validate
from milkweed.loaders.decode.dali_graph import DaliError, DaliGraph
from milkweed.loaders.decode.dali_route import slot_of
from milkweed.loaders.errors import LoaderError

from ..test_bad_images import EXPECTED

SPEC = PreprocessSpec()
LEVEL = torch.tensor(SPEC.std).view(3, 1, 1) * 255


@pytest.fixture(scope="module")
def loader():
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader

    made = DaliLoader(SPEC, num_threads=2, max_batch=8)
    yield made
    made.close()


@pytest.fixture
def photos(picture: Callable[..., Image.Image], encoded: Callable[..., bytes]) -> list[bytes]:
    """JPEGs of every kind that DALI gets: odd sizes, samplings, grey, all eight orientations."""
    sizes = [
        (500, 375),
        (375, 500),
        (333, 251),
        (257, 256),
        (1024, 257),
        (301, 299),
        (640, 480),
        (259, 777),
        (300, 900),
    ]
    bodies = [
        encoded(picture(*size, seed), "JPEG", quality=90, subsampling=seed % 3) for seed, size in enumerate(sizes)
    ]
    bodies.append(encoded(picture(320, 280, 9).convert("L"), "JPEG"))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        bodies.append(encoded(picture(410, 300, orientation), "JPEG", exif=exif))
    return bodies


def difference(loader, bodies: list[bytes]) -> torch.Tensor:
    """Levels away from the reference, (n, 3, S, S)."""
    found, wanted = loader.load(bodies), PillowLoader(SPEC).load(bodies)
    assert found.errors == wanted.errors == {}
    return (found.pixels - wanted.pixels).abs() * LEVEL


def test_pixels_are_the_references(loader, photos):
    before = loader.counts.dali
    off = difference(loader, photos)
    assert loader.counts.dali == before + len(photos)
    assert float(off.mean((1, 2, 3)).max()) <= 0.15
    assert round(float(off.max()), 2) <= 8


def test_one_pass_is_near(photos):
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader

    off = difference(DaliLoader(SPEC, resample="fused"), photos)
    assert 0.02 < float(off.mean()) <= 0.3
    assert round(float(off.max()), 2) <= 32


def test_a_pixel_too_far_would_be_seen(picture, encoded):
    """A chequer of columns: a crop that is off by a pixel of the source shows as many levels."""
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader

    spec = PreprocessSpec(size=64, crop_pct=1.0)
    for width, height in ((64, 101), (101, 64), (65, 64), (64, 64), (90, 67)):
        ramp = np.zeros((height, width, 3), np.uint8)
        ramp[..., 0], ramp[..., 1] = np.arange(width) * 2 % 256, (np.arange(height) * 2 % 256)[:, None]
        body = encoded(Image.fromarray(ramp), "JPEG", quality=100, subsampling=0)
        found, wanted = (made.load([body]).pixels for made in (DaliLoader(spec), PillowLoader(spec)))
        assert float(((found - wanted).abs() * LEVEL).mean()) < 0.15, (width, height)


def test_others_go_to_the_fast_loader_bit_for_bit(loader, picture, encoded):
    bodies = [
        encoded(picture(300, 280), "PNG"),
        encoded(picture(300, 280, 1), "WEBP"),
        encoded(picture(300, 280, 2), "JPEG", progressive=True),
        encoded(picture(300, 280, 3).convert("CMYK"), "JPEG"),
    ]
    before = replace(loader.counts)
    assert torch.equal(loader.load(bodies).pixels, CpuLoader(SPEC).load(bodies).pixels)
    assert (loader.counts.dali, loader.counts.cpu) == (before.dali, before.cpu + 4)
    padded = PreprocessSpec(size=64, crop_pct=1.5)
    from milkweed.loaders.decode.dali import DaliLoader

    body = encoded(picture(90, 80), "JPEG")
    assert torch.equal(DaliLoader(padded).load([body]).pixels, CpuLoader(padded).load([body]).pixels)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_bad_file_between_good_ones(loader, shared: Path, picture, encoded, name: str):
    body = (shared / "data" / "bad-images" / name).read_bytes()
    good = [encoded(picture(300, 240, seed), "JPEG") for seed in (1, 2)]
    alone = loader.load(good).pixels
    result = loader.load([good[0], body, good[1]])
    code = EXPECTED[name]
    assert {index: error.code for index, error in result.errors.items()} == ({} if code is None else {1: code})
    assert torch.equal(result.pixels[[0, -1]], alone)
    if code is None:
        wanted = PillowLoader(SPEC).load([body]).pixels[0]
        off = (result.pixels[1] - wanted).abs() * LEVEL
        assert float(off.mean()) <= 0.15
        assert round(float(off.max()), 2) <= 8


def damaged(body: bytes) -> bytes:
    """A body that looks whole and that no decoder accepts: its Huffman tables are wrong."""
    at = body.index(b"\xff\xc4") + 5
    return body[:at] + bytes(16) + body[at + 16 :]


def test_damaged_data_is_refused_as_by_the_fast_loader(loader, picture, encoded):
    """Bits turned over in the coded data: DALI alone would answer most of them with a picture of its own."""
    rng = np.random.default_rng(0)
    from milkweed.loaders.decode.dali import DaliLoader

    bodies = []
    for seed in range(40):
        body = bytearray(encoded(picture(200, 150, seed), "JPEG"))
        at = int(rng.integers(body.index(b"\xff\xda") + 20, len(body) - 40))
        body[at : at + 16] = rng.bytes(16)
        bodies.append(bytes(body))
    before = loader.health.rebuilds
    found, wanted = loader.load(bodies), CpuLoader(SPEC).load(bodies)
    assert {i: e.message for i, e in found.errors.items()} == {i: e.message for i, e in wanted.errors.items()}
    assert 5 < len(found.errors) < 35
    assert loader.health.rebuilds == before
    lenient = DaliLoader(SPEC, strict=False).load(bodies).errors
    assert len(lenient) < len(found.errors)


def test_a_batch_that_dali_loses_is_answered_and_the_graph_rebuilt(picture, encoded):
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader

    loader = DaliLoader(SPEC, num_threads=2, max_batch=8, strict=False)
    good = [encoded(picture(300, 240, seed), "JPEG") for seed in range(7)]
    bodies = [*good[:3], damaged(good[3]), *good[4:]]
    before = replace(loader.counts)
    result = loader.load(bodies)
    assert {index: error.code for index, error in result.errors.items()} == {3: "undecodable"}
    assert result.ok == [0, 1, 2, 4, 5, 6]
    assert torch.equal(result.pixels, loader.load([*good[:3], *good[4:]]).pixels)  # as if it had not been there
    assert result.decoders == ["dali"] * 6
    assert (loader.counts.retried, loader.health.rebuilds) == (before.retried + 7, 1)
    assert loader.health.trouble is None
    # and the next batch is DALI's again
    assert loader.load(good).decoders == ["dali"] * 7


def test_batches_keep_to_their_limits(picture, encoded, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    from milkweed.loaders.decode.dali import DaliLoader

    runs: list[int] = []
    run = DaliGraph.run
    monkeypatch.setattr(
        DaliGraph, "run", lambda graph, bodies, regions: runs.append(len(bodies)) or run(graph, bodies, regions)
    )
    small = DaliLoader(SPEC, max_batch=4, max_batch_pixels=300 * 300 * 3)
    bodies = [encoded(picture(300, 300, seed), "JPEG") for seed in range(5)]
    bodies.append(encoded(picture(1200, 300), "JPEG"))
    assert len(small.load(bodies).ok) == 6
    assert runs == [3, 2, 1]
    runs.clear()
    assert len(DaliLoader(SPEC, max_batch=4, max_batch_pixels=10**9).load(bodies).ok) == 6
    assert runs == [4, 2]
    assert small.load([]).pixels.shape == (0, 3, 224, 224)


def test_without_a_gpu_its_graph_is_refused_but_can_be_made():
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    with pytest.raises(LoaderError, match=r"DALI cannot be built for the gpu: .*CUDA"):
        DaliGraph(SPEC, batch_size=4, device="gpu", hw_decoder_load=0.65)
    graph = DaliGraph(SPEC, batch_size=4, hw_decoder_load=0.65)
    graph.device = "gpu"  # of no device: enough to check operators and arguments
    written = graph.define().serialize()
    assert b"hw_decoder_load" in written
    assert b"jpeg_fancy_upsampling" in written


def test_options_out_of_range_are_named():
    for options, said in (  # before DALI is asked for
        ({"resample": "nearest"}, "resample is 'nearest': expected exact or fused"),
        ({"hw_decoder_load": 1.5}, "hw_decoder_load is 1.5: expected a number from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=said):
            DaliGraph(SPEC, batch_size=4, **options)


def test_without_dali_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(LoaderError, match=r"pip install 'milkweed\[dali\]'"):
        create_loader("dali", SPEC)


def test_memory_stays_where_it_is_over_300_rebuilds(loader, picture, encoded):
    body = damaged(encoded(picture(64, 64), "JPEG"))
    graph = loader.graph
    slot = slot_of(SPEC, 0, body, validate(body))

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(DaliError):
                graph.run([slot.body], [slot.region])

    fail(30)
    before = resident()
    fail(300)
    assert resident() - before < 30 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
