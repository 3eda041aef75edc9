"""The graph's output in every dtype and layout, the same numbers in each."""

import pytest
import torch

from milkweed.loaders import PreprocessSpec, validate
from milkweed.loaders.decode.dali_graph import DaliGraph
from milkweed.loaders.decode.dali_route import slot_of

SPEC = PreprocessSpec()


@pytest.fixture
def slots(picture, encoded):
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    bodies = [encoded(picture(300 + seed, 260, seed), "JPEG") for seed in range(3)]
    return [slot_of(SPEC, index, body, validate(body)) for index, body in enumerate(bodies)]


def pixels(slots, **options):
    graph = DaliGraph(SPEC, batch_size=4, **options)
    return graph.run([slot.body for slot in slots], [slot.region for slot in slots])


def test_half_types_are_the_rounded_float32(slots):
    exact = pixels(slots)
    assert exact.dtype == torch.float32
    for dtype in (torch.float16, torch.bfloat16):
        half = pixels(slots, dtype=dtype)
        assert half.dtype == dtype
        assert torch.equal(half, exact.to(dtype))


def test_channels_last_is_another_layout_of_the_same(slots):
    exact = pixels(slots)
    last = pixels(slots, channels_last=True)
    assert last.shape == exact.shape == (3, 3, 224, 224)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert exact.is_contiguous()
    assert torch.equal(last, exact)
    half = pixels(slots, channels_last=True, dtype=torch.float16)
    assert half.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(half, exact.half())


def test_pixels_outlive_later_runs(slots):
    graph = DaliGraph(SPEC, batch_size=4)
    first = graph.run([slots[0].body], [slots[0].region])
    kept = first.clone()
    for _ in range(20):
        graph.run([slot.body for slot in slots[1:]], [slot.region for slot in slots[1:]])
    assert torch.equal(first, kept)


def test_an_empty_run_has_the_graphs_dtype(slots):
    assert pixels([], dtype=torch.float16).dtype == torch.float16


def test_a_dtype_that_is_none_is_named():
    with pytest.raises(ValueError, match=r"dtype is torch.int8: expected torch.float32"):
        DaliGraph(SPEC, batch_size=1, dtype=torch.int8)


def test_the_gpu_graph_has_its_hints(slots):
    graph = DaliGraph(SPEC, batch_size=4, hw_decoder_load=0.65, dtype=torch.float16)
    graph.device = "gpu"  # of no device: enough to make and write it
    written = graph.define().serialize()
    for argument in (b"device_memory_padding", b"preallocate_width_hint", b"hw_decoder_load", b"mixed"):
        assert argument in written
