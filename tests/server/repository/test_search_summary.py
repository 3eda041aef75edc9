"""What /v1/models says of a search: short, of one image at a time, and nothing where the record makes no sense."""

import logging

import pytest

from milkweed.server.repository.search_summary import search_summary

from ...support.frontiers import MODELS, record


def test_it_is_of_one_image_at_a_time() -> None:
    found = search_summary("fast", {"search": record()})
    assert found is not None
    assert {name: found[name] for name in ("batch", "images", "measured_on", "dense", "peer")} == {
        "batch": 1,
        "images": 500,
        "measured_on": "AMD EPYC, 2 cores",
        "dense": {"computed_by": "openvino float32", "ms": 26.4},
        "peer": {"computed_by": "openvino bfloat16", "speedup": 1.724},
    }
    models = found["models"]
    assert [model["ms"] for model in models] == sorted(row[3] for row in MODELS)
    ahead = [model["kl"][0] for model in models if model["on_front"]]
    assert ahead == sorted((row[4] for row in MODELS if row[8] and row[4] != 0.0785), reverse=True)  # beaten at 8.0 ms
    (chosen,) = (model for model in models if model["chosen"])
    half = 196 * (0.926 * 0.074 / 500) ** 0.5
    assert chosen == {
        "name": MODELS[3][0],
        "computed_by": "openvino bfloat16",
        "ms": 8.7,
        "speedup": 3.034,  # of both batch sizes the least, as `milkweed inspect` prints it
        "kl": pytest.approx([0.0261, 0.0261 * 0.85, 0.0261 * 1.15], rel=1e-3),
        "agreement": pytest.approx([92.6, 92.6 - half, 92.6 + half], rel=1e-3),
        "expected_change": pytest.approx([-7.4 / 15, -7.4 / 8, -7.4 / 70], rel=1e-3),
        "top1_change": pytest.approx([-0.2, -0.2 - half, -0.2 + half], rel=1e-3),
        "bytes": 6_000_000,
        "over_peer": 1.724,
        "on_front": True,
        "chosen": True,
    }


def test_without_labels_and_without_one_image() -> None:
    document = record(labelled=False)
    for timed in (document["dense"], *document["models"]):
        timed["ms"] = {"8": timed["ms"]["8"]}
    found = search_summary("fast", {"search": document})
    assert found is not None
    assert found["batch"] == 8
    assert {model["top1_change"] for model in found["models"]} == {None}


def test_a_model_without_a_search_has_none() -> None:
    assert search_summary("demo", {"evaluations": {}}) is None


def test_a_record_that_makes_no_sense_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="milkweed.opening"):
        assert search_summary("fast", {"search": {"models": []}}) is None
    assert caplog.messages == ["model fast: metrics.search.dense: Field required: not shown"]
