"""The DALI loader when DALI fails it: fault injection at the pipeline, and sources that do harm on purpose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from milkweed.loaders import DEFAULT_LIMITS, FORMATS, CpuLoader, PillowLoader, PreprocessSpec
from milkweed.loaders.decode.dali_graph import DaliGraph, DaliOptions
from milkweed.loaders.errors import LoaderError
from milkweed.loaders.headers.info import OPT_IN_FORMATS

from .test_dali import damaged

pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
from milkweed.loaders.decode.dali import DaliLoader

SPEC = PreprocessSpec(size=32, crop_pct=1.0)


@pytest.fixture
def loader():
    made = DaliLoader(SPEC, options=DaliOptions(max_batch=8, strict=False))  # so that bad bodies reach DALI
    yield made
    made.close()


@pytest.fixture
def good(picture, encoded):
    return [encoded(picture(64, 48, seed), "JPEG") for seed in range(4)]


class Broken:
    """Stands for a pipeline: every run raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, stream: object, **inputs: object) -> Any:
        raise self._error


def test_any_error_of_a_run_costs_a_rebuild_and_no_image(loader, good, caplog):
    wanted = loader.load(good).pixels
    for error in (RuntimeError("CUDA error\nillegal address"), MemoryError(), TypeError(f"bad {good[0]!r}")):
        before = loader.health.rebuilds
        loader.graph.pipeline = Broken(error)
        result = loader.load(good)
        assert not result.errors
        # the fast loader found nothing wrong, so its pixels answer
        assert result.decoders == ["cpu"] * 4
        assert np.array_equal(result.pixels, CpuLoader(SPEC).load(good).pixels)
        assert loader.health.rebuilds == before + 1
        assert np.array_equal(loader.load(good).pixels, wanted)  # the new graph
    assert "illegal address" in caplog.text
    assert "unexpected TypeError" in caplog.text
    assert "JFIF" not in caplog.text  # no image bytes


def test_a_graph_that_cannot_be_built_anew_is_an_error_until_it_can(loader, good, monkeypatch):
    build = DaliGraph.build

    def refuse(graph: DaliGraph) -> Any:
        raise LoaderError("DALI cannot be built for the cpu: no memory")

    loader.graph.pipeline = Broken(RuntimeError("lost"))
    monkeypatch.setattr(DaliGraph, "build", refuse)
    wanted = CpuLoader(SPEC).load(good).pixels
    assert np.array_equal(loader.load(good).pixels, wanted)
    assert loader.health.error is None  # once may be chance
    assert np.array_equal(loader.load(good).pixels, wanted)
    assert loader.health.error == "DALI cannot be built for the cpu: no memory"
    monkeypatch.setattr(DaliGraph, "build", build)
    assert loader.load(good).decoders == ["dali"] * 4
    assert loader.health.error is None


def test_several_bad_bodies_in_one_batch(loader, good):
    bodies = [damaged(good[0]), good[1], damaged(good[2]), good[3], damaged(good[1])]
    result = loader.load(bodies)
    assert result.ok == [1, 3]
    assert {error.code for error in result.errors.values()} == {"undecodable"}
    assert result.decoders == ["dali", "dali"]
    assert np.array_equal(result.pixels, loader.load([good[1], good[3]]).pixels)
    alone = loader.load([damaged(good[0])])
    assert not alone.ok
    assert alone.pixels.shape == (0, 3, 32, 32)


def test_where_dali_alone_refuses_the_fast_loader_answers(loader, good, monkeypatch):
    """The good neighbours of a bad body are lost a second time: they still have their pixels."""
    run = DaliGraph.run
    calls = []

    def lose_twice(graph: DaliGraph, bodies: Any, regions: Any) -> Any:
        calls.append(len(bodies))
        if len(calls) == 2:
            graph.pipeline = Broken(RuntimeError("again"))
        return run(graph, bodies, regions)

    monkeypatch.setattr(DaliGraph, "run", lose_twice)
    result = loader.load([*good, damaged(good[0])])
    assert calls == [5, 4]
    assert result.ok == [0, 1, 2, 3]
    assert np.array_equal(result.pixels, CpuLoader(SPEC).load(good).pixels)
    assert result.decoders == ["cpu"] * 4


def test_who_keeps_breaking_batches_is_decoded_strictly(loader, good):
    bad = damaged(good[0])
    for _ in range(3):
        loader.load([bad, *good], sources=["mallory", *["alice"] * 4])
    rebuilds = loader.health.rebuilds
    assert rebuilds == 3
    result = loader.load([bad, good[1], good[2], good[3]], sources=["mallory", "mallory", "alice", None])
    assert result.decoders == ["cpu", "dali", "dali"]
    assert {index: error.code for index, error in result.errors.items()} == {0: "undecodable"}
    health = loader.health
    assert (health.rebuilds, health.quarantined_sources, health.quarantined_images) == (rebuilds, 1, 2)


def test_bodies_that_dali_would_not_get_put_nobody_in_quarantine(loader, good):
    for _ in range(5):
        loader.load([good[0][:200], good[0][:-20], b"GIF89a nothing"], sources=["bob"] * 3)
    assert loader.health.quarantined_sources == 0
    assert loader.load(good, sources=["bob"] * 4).decoders == ["dali"] * 4


def test_small_images_go_to_the_fast_loader_unless_there_are_many(picture, encoded):
    small = [encoded(picture(64, 48, seed), "JPEG") for seed in range(3)]
    large = encoded(picture(400, 300), "JPEG")
    loader = DaliLoader(SPEC, options=DaliOptions(min_pixels=10_000, min_batch=4))
    assert loader.load([*small[:2], large]).decoders == ["cpu", "cpu", "dali"]
    assert loader.load([*small, large]).decoders == ["dali"] * 4
    everything = DaliLoader(SPEC)
    assert everything.load(small[:1]).decoders == ["dali"]


def test_infos_and_sources_must_be_as_many(loader, good):
    with pytest.raises(ValueError, match="1 infos, 2 sources for 2 items"):
        loader.load(good[:2], [None], [None, None])


def test_jpeg_2000_is_never_dalis(picture, encoded):
    limits = replace(DEFAULT_LIMITS, formats=FORMATS + OPT_IN_FORMATS)
    loader = DaliLoader(SPEC, limits, options=DaliOptions(strict=False))
    bodies = [encoded(picture(90, 70), "JPEG2000"), encoded(picture(90, 70), "JPEG")]
    found = loader.load(bodies)
    assert found.decoders == ["cpu", "dali"]
    assert np.array_equal(found.pixels[0], PillowLoader(SPEC, limits).load(bodies[:1]).pixels[0])
    loader.close()
