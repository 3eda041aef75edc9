"""The whole simulation: what happens has its effect, rows say what happened, the command writes them."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("yaml", reason="the manifests are YAML")

from milkweed.bench.autoscale.__main__ import main
from milkweed.bench.autoscale.curve import Curve
from milkweed.bench.autoscale.hpa import Scaling
from milkweed.bench.autoscale.manifest import scaled_object
from milkweed.bench.autoscale.sections import metric
from milkweed.bench.autoscale.simulate import SERIES, Pods, Run, Setup, simulate, summary
from milkweed.bench.autoscale.traffic import DAY_SECONDS, Traffic, constant, day, trial

CURVE = Curve(0.0, 0.02, 8, 2)


def scaling(most: int = 60, signal: str = "in-flight") -> Scaling:
    return scaled_object().between(2, most).following(metric(CURVE, signal, 0.6))


@pytest.mark.parametrize("signal", ["in-flight", "in-flight-gauge", "images", "busy"])
def test_a_signal_settles_at_the_load_that_it_aims_at(signal: str) -> None:
    load = 30 * 0.6 * CURVE.capacity
    run = simulate(Setup(CURVE, scaling(signal=signal), start_seconds=20), constant(load, 1200))
    # The number stays at the most that was wanted in five minutes, and within the tolerance.
    assert 27 <= run.series["ready"][-1] <= (40 if signal == "in-flight-gauge" else 34)
    assert run.series["refused"].sum() == 0


def test_a_burst_is_met_by_more_replicas_and_later_by_fewer() -> None:
    burst = constant(10 * 50.0, 2400).times("burst", 900, np.full(300, 2.5))
    setup = Setup(CURVE, scaling(), start_seconds=30)
    run = simulate(setup, burst)
    ready, refused = run.series["ready"], run.series["refused"]
    assert 15 <= ready[850] <= 21  # ten at full load, 16.7 at the load that is aimed at
    assert np.all(ready[900:930] == ready[899])  # nobody is there sooner than a pod starts
    assert refused[905:930].sum() > 0
    assert ready[1000:1200].min() >= 25
    assert refused[1000:].sum() == 0
    assert ready[-1] <= 21
    row = summary(setup, burst, run)
    assert row["on_time"] == pytest.approx(1 - refused.sum() / run.series["offered"].sum(), abs=1e-5)
    assert row["bad_seconds"] == row["events"][0]["bad_seconds"] < 100
    assert row["hours"] > row["hours"] / row["hours_ratio"] > (2100 * 10 + 300 * 25) / 3600 - 0.1


def test_the_same_seed_is_the_same_run() -> None:
    first, again, other = (
        simulate(Setup(CURVE, scaling(), seed=seed), constant(900.0, 60)).waits for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_pods_start_and_the_newest_go_first() -> None:
    pods = Pods(20, 10.0, np.random.default_rng(0), 9)
    assert np.count_nonzero(pods.tick(0)) == 9
    pods.wanted = 12
    assert np.count_nonzero(pods.tick(1)) == 9
    pods.wanted = 10
    assert (np.count_nonzero(pods.tick(2)), pods.count) == (9, 10)  # those that are not ready go first
    assert np.count_nonzero(pods.tick(8)) == 9
    assert np.count_nonzero(pods.tick(13)) == 10
    assert pods.seconds == 9 + 12 + 10 + 10 + 10
    pods.wanted = 8
    assert np.count_nonzero(pods.tick(14)) == 8
    assert pods.seconds == 51 + 8 + 2 * 10  # two of them end, and take up their places for a while


def test_an_oracle_needs_a_replica_for_each_capacity() -> None:
    series = {name: np.zeros(4) for name in SERIES}
    series["offered"][:] = 100
    series["refused"][1:3] = 0.5, 2
    run = Run(series, np.ones(5001), 14.0)
    row = summary(Setup(CURVE, scaling()), Traffic(np.array([10.0, 50.0, 51.0, 100.0])), run)
    assert row["hours_ratio"] == pytest.approx(14 / (1 + 1 + 2 + 2), abs=1e-3)
    assert (row["bad_seconds"], row["on_time"]) == (1, 1 - 2.5 / 400)


def test_courses_are_what_they_are_called() -> None:
    whole = day(1000.0, np.random.default_rng(0))
    assert len(whole.rates) == DAY_SECONDS
    hours = whole.rates.reshape(24, 3600).mean(axis=1)
    assert hours[4] == pytest.approx(300, rel=0.03)
    assert hours[16] == pytest.approx(1000, rel=0.03)
    for name, at in whole.events[:3]:
        factor = {"3": 3.0, "h": 1.5, "a": 2.0}[name[0]]
        assert whole.rates[at + 60] / whole.rates[at - 60] == pytest.approx(factor, rel=0.15)
    assert whole.rates[21 * 3600 : 22 * 3600].max() > 1.3 * whole.rates[20 * 3600 : 21 * 3600].mean()
    part = whole.between(3600, 4 * 3600)
    assert part.events == (("3 times as much within 10 s", 2 * 3600),)
    eventful = trial(100.0, np.random.default_rng(0))
    assert (eventful.rates.min(), eventful.rates[2000], eventful.rates[5400]) == (100, 300, 150)
    assert eventful.rates[7200:].max() > 150


def test_the_command_writes_rows_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the picture")
    out = tmp_path / "autoscale.json"
    curve = ["--fixed-ms", "20", "--image-ms", "10"]
    assert main(["--sections", "targets,day", "--replicas", "40", "--hours", "0.2", *curve, "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["capacity"] == pytest.approx(80)
    assert document["day"]["on_time"] > 0.99
    assert len(document["series"]["offered"]) == 12
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in out.read_text()
    assert "hours_ratio" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--server", "none.json"], ["--image-ms", "100", "--deadline-ms", "900"]])
def test_what_cannot_be_simulated_is_one_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong) == 2
    assert capsys.readouterr().err.startswith("autoscale: ")


@pytest.mark.skipif("MILKWEED_TEST_DEPLOY" not in os.environ, reason="minutes: set MILKWEED_TEST_DEPLOY=1")
def test_ten_thousand_replicas_live_through_an_hour_in_a_minute() -> None:
    setup = Setup(CURVE, scaling(10_000))
    course = day(5_000 * CURVE.capacity, np.random.default_rng(0)).between(9 * 3600 - 600, 10 * 3600 - 600)
    began = time.process_time()
    run = simulate(setup, course)
    assert time.process_time() - began < 120
    assert run.series["wanted"].max() > 5_000
    assert summary(setup, course, run)["on_time"] > 0.95
