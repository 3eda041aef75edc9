"""Thresholds of the autoscaler: those of the queue's Markov chain, of the formula for M/D/1, and as deployed."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from milkweed.bench.autoscale import Floats, batch_seconds, main, thresholds

SCALED_OBJECT = Path(__file__).resolve().parents[2] / "deploy/kubernetes/components/autoscale/scaledobject.yaml"
EXAMPLE = batch_seconds(50.0, None, 8, 2)


def chain(by_images: Floats, share: float) -> tuple[float, float]:
    """Return images in flight and the busy fraction by the Markov chain of the queue length when a batch ends."""
    most, waiting = len(by_images) - 1, np.arange(24 * len(by_images) + 120)
    rate, batch, left = share * most / by_images[-1], np.clip(waiting, 1, most), np.maximum(waiting - most, 0)
    seconds, log_factorials = by_images[batch], np.array([math.lgamma(k + 1) for k in waiting])
    moves = np.zeros((len(waiting), len(waiting)))
    for x, mean in enumerate(rate * seconds):
        moves[x, left[x] :] = np.exp(waiting * math.log(mean) - mean - log_factorials)[: len(waiting) - left[x]]
    shares = np.full(len(waiting), 1 / len(waiting))
    for _ in range(400_000 // len(waiting)):
        shares = shares @ moves
        shares /= shares.sum()
    cycle = shares @ (seconds + np.where(waiting == 0, 1 / rate, 0))
    area = (batch + left) * seconds + rate * seconds**2 / 2
    return float(shares @ area / cycle), float(shares @ seconds / cycle)


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("by_images", [EXAMPLE, batch_seconds(4000, 548, 64, 1)], ids=["two lanes", "a fixed part"])
def test_batches_are_those_of_the_markov_chain(by_images: Floats, share: float) -> None:
    found, (in_flight, busy) = thresholds(by_images, share), chain(by_images, share)
    assert found["in_flight"] == pytest.approx(in_flight, rel=0.04)
    assert found["busy"] == pytest.approx(busy, abs=0.01)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_queue_of_one_at_a_time_is_m_d_1(share: float) -> None:
    expected = share + share**2 / (2 * (1 - share))  # Pollaczek and Khinchine
    assert thresholds(batch_seconds(10, None, 1, 1), share)["in_flight"] == pytest.approx(expected, rel=0.05)
    assert chain(batch_seconds(10, None, 1, 1), share)[0] == pytest.approx(expected, rel=1e-3)


def test_the_deployed_thresholds_are_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("share 0.6"))
    in_flight, full_batch = (
        float(re.findall(rf"{name} ([\d.]+)", line)[0]) for name in ("in_flight", "full_batch_seconds")
    )
    deployed = [float(value) for value in re.findall(r'threshold: "([\d.]+)"', SCALED_OBJECT.read_text())]
    assert deployed == [pytest.approx(in_flight, rel=0.05), pytest.approx(full_batch, rel=0.05)]


def test_a_capacity_gives_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--single", "548", "--capacity", "4000", "--max-batch", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert float(lines[1].split()[3]) == pytest.approx(13.5, rel=0.02)


def test_a_line_goes_through_a_single_image_and_a_full_batch() -> None:
    assert batch_seconds(8 / 0.012, 1 / 0.005, 8, 1)[1:] == pytest.approx([0.005 + 0.001 * n for n in range(8)])
    assert list(EXAMPLE) == pytest.approx([0, 0.04, 0.04, 0.08, 0.08, 0.12, 0.12, 0.16, 0.16])


@pytest.mark.parametrize("wrong", ["--single 5", "--capacity 50 --lanes 3", "--capacity 50 --max-batch 0"])
def test_what_cannot_be_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong.split()) == 2
    assert capsys.readouterr().err.startswith("autoscale: ")
