"""The DALI loader on the CPU: the pixels of the reference, and no bad image that harms its neighbours."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders import CpuLoader, PillowLoader, PreprocessSpec, create_loader, validate
from milkweed.loaders.decode.dali_graph import DaliError, DaliGraph, DaliOptions
from milkweed.loaders.decode.dali_route import slot_of
from milkweed.loaders.errors import LoaderError

pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
from milkweed.loaders.decode.dali import DaliLoader

SPEC = PreprocessSpec()
LEVEL = np.array(SPEC.std)[:, None, None] * 255


@pytest.fixture(scope="module")
def loader():
    made = DaliLoader(SPEC, num_threads=2, options=DaliOptions(max_batch=8))
    yield made
    made.close()


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_a_pixel_too_far_would_be_seen(crop_mode, encoded):
    """A chequer of columns: a crop that is off by a pixel of the source shows as many levels."""
    spec = PreprocessSpec(size=64, crop_pct=1.0, crop_mode=crop_mode)
    for width, height in ((64, 101), (101, 64), (65, 64), (64, 64), (90, 67)):
        ramp = np.zeros((height, width, 3), np.uint8)
        ramp[..., 0], ramp[..., 1] = np.arange(width) * 2 % 256, (np.arange(height) * 2 % 256)[:, None]
        body = encoded(Image.fromarray(ramp), "JPEG", quality=100, subsampling=0)
        found, wanted = (made.load([body]).pixels for made in (DaliLoader(spec), PillowLoader(spec)))
        assert float((abs(found - wanted) * LEVEL).mean()) < 0.15, (width, height)


def test_others_go_to_the_fast_loader_bit_for_bit(loader, picture, encoded):
    bodies = [
        encoded(picture(300, 280), "PNG"),
        encoded(picture(300, 280, 1), "WEBP"),
        encoded(picture(300, 280, 2), "JPEG", progressive=True),
        encoded(picture(300, 280, 3).convert("CMYK"), "JPEG"),
    ]
    before = replace(loader.counts)
    assert np.array_equal(loader.load(bodies).pixels, CpuLoader(SPEC).load(bodies).pixels)
    assert (loader.counts.dali, loader.counts.cpu) == (before.dali, before.cpu + 4)
    padded = PreprocessSpec(size=64, crop_pct=1.5)
    body = encoded(picture(90, 80), "JPEG")
    assert np.array_equal(DaliLoader(padded).load([body]).pixels, CpuLoader(padded).load([body]).pixels)


def test_it_gets_the_jpeg_of_a_webcam_without_its_junk(loader, picture, encoded):
    clean = encoded(picture(300, 280), "JPEG", restart_marker_rows=1)
    mark = clean.index(b"\xff\xd3", clean.index(b"\xff\xda"))
    before = replace(loader.counts)
    result = loader.load([clean, clean[:mark] + bytes(9) + clean[mark:]])
    assert result.ok == [0, 1]
    assert np.array_equal(result.pixels[0], result.pixels[1])
    assert loader.counts.dali == before.dali + 2


def damaged(body: bytes) -> bytes:
    """A body that looks whole and that no decoder accepts: its Huffman tables are wrong."""
    at = body.index(b"\xff\xc4") + 5
    return body[:at] + bytes(16) + body[at + 16 :]


def test_damaged_data_is_refused_as_by_the_fast_loader(loader, picture, encoded):
    """Bits turned over in the coded data: DALI alone would answer most of them with a picture of its own."""
    rng = np.random.default_rng(0)
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
    lenient = DaliLoader(SPEC, options=DaliOptions(strict=False)).load(bodies).errors
    assert len(lenient) < len(found.errors)


def test_a_batch_that_dali_loses_is_answered_and_the_graph_rebuilt(picture, encoded):
    loader = DaliLoader(SPEC, num_threads=2, options=DaliOptions(max_batch=8, strict=False))
    good = [encoded(picture(300, 240, seed), "JPEG") for seed in range(7)]
    bodies = [*good[:3], damaged(good[3]), *good[4:]]
    before = replace(loader.counts)
    result = loader.load(bodies)
    assert {index: error.code for index, error in result.errors.items()} == {3: "undecodable"}
    assert result.ok == [0, 1, 2, 4, 5, 6]
    assert np.array_equal(result.pixels, loader.load([*good[:3], *good[4:]]).pixels)  # as if it had not been there
    assert result.decoders == ["dali"] * 6
    assert (loader.counts.retried, loader.health.rebuilds) == (before.retried + 7, 1)
    assert loader.health.error is None
    # and the next batch is DALI's again
    assert loader.load(good).decoders == ["dali"] * 7


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Pixels of each image of each run of a graph."""
    seen, run = [], DaliGraph.run

    def noted(graph, bodies, regions):
        seen.append([region.width * region.height for region in regions])
        return run(graph, bodies, regions)

    monkeypatch.setattr(DaliGraph, "run", noted)
    return seen


def test_warming_up_decodes_a_full_batch_and_a_large_picture(runs):
    loader = DaliLoader(SPEC, options=DaliOptions(max_batch=8))
    loader.warm_up(100)
    assert runs == [[500 * 375] * 8, [12_000_000]]
    assert loader.counts.dali == 0
    loader.close()


def test_batches_keep_to_their_limits(picture, encoded, runs):
    small, large = (
        DaliLoader(SPEC, options=DaliOptions(max_batch=4, max_batch_pixels=most)) for most in (300 * 300 * 3, 10**9)
    )
    bodies = [encoded(picture(300, 300, seed), "JPEG") for seed in range(5)]
    bodies.append(encoded(picture(1200, 300), "JPEG"))
    assert len(small.load(bodies).ok) == 6
    assert list(map(len, runs)) == [3, 2, 1]
    runs.clear()
    assert len(large.load(bodies).ok) == 6
    assert list(map(len, runs)) == [4, 2]
    assert small.load([]).pixels.shape == (0, 3, 224, 224)


def test_without_a_gpu_its_graph_is_refused_but_can_be_made():
    options = DaliOptions(max_batch=4, hw_decoder_load=0.65, dtype="float16")
    if not torch.cuda.is_available():
        with pytest.raises(LoaderError, match=r"DALI cannot be built for the gpu: .*CUDA"):
            DaliGraph(SPEC, options, device="gpu")
    graph = DaliGraph(SPEC, options)
    graph.device = "gpu"  # of no device: enough to check operators and arguments
    written = graph.define().serialize()
    for argument in (b"device_memory_padding", b"preallocate_width_hint", b"hw_decoder_load", b"mixed"):
        assert argument in written
    assert b"jpeg_fancy_upsampling" in written


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"resample": "nearest"}, "resample is 'nearest': expected exact or fused"),
        ({"hw_decoder_load": 1.5}, "hw_decoder_load is 1.5: expected a number from 0 to 1"),
        ({"dtype": "int8"}, "dtype is int8: expected float32"),
    ],
)
def test_options_out_of_range_are_named(option, said):
    with pytest.raises(ValueError, match=said):
        DaliOptions(**option)


@pytest.fixture
def slots(picture, encoded):
    bodies = [encoded(picture(300 + seed, 260, seed), "JPEG") for seed in range(3)]
    return [slot_of(SPEC, index, body, validate(body)) for index, body in enumerate(bodies)]


def pixels(graph, slots):
    return graph.run([slot.body for slot in slots], [slot.region for slot in slots])


def test_half_types_are_the_rounded_float32(slots):
    exact = pixels(DaliGraph(SPEC), slots)
    assert exact.dtype == torch.float32
    for name in ("float16", "bfloat16"):
        dtype = getattr(torch, name)
        graph = DaliGraph(SPEC, DaliOptions(dtype=name))
        assert torch.equal(pixels(graph, slots), exact.to(dtype))
        assert pixels(graph, []).dtype == dtype


def test_pixels_outlive_later_runs(slots):
    graph = DaliGraph(SPEC)
    first = pixels(graph, slots[:1])
    kept = first.clone()
    for _ in range(20):
        pixels(graph, slots[1:])
    assert torch.equal(first, kept)


def test_without_dali_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(LoaderError, match=r"needs nvidia-dali: .*install.*dali"):
        create_loader("dali", SPEC)


@pytest.mark.slow
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
