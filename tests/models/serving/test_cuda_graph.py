"""CudaGraphForward chooses and fills buckets; the capture here is a plain call, fused/test_gpu.py has a real one."""

import logging

import pytest
import torch
from torch import Tensor

from milkweed.models.serving.cuda_graph import Captured, CudaGraphForward, ForwardFunction

CPU = torch.device("cpu")
SHAPE = (3, 2, 2)


def forward(images: Tensor) -> Tensor:
    """Every row is its own image's sum and square sum."""
    flat = images.flatten(1)
    return torch.stack([flat.sum(1), flat.square().sum(1)], dim=1)


class Recorded:
    """A capture whose replay calls the forward and writes into the same memory each time, as a graph does."""

    def __init__(self, wrong_at: int = 0, fail_at: int = 0) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []
        self.inputs: list[int] = []
        self._wrong_at, self._fail_at = wrong_at, fail_at

    def __call__(self, forward: ForwardFunction, images: Tensor) -> Captured:
        size = len(images)
        if size == self._fail_at:
            raise RuntimeError("operation not permitted when stream is capturing\nlong explanation")
        self.captured.append(size)
        self.inputs.append(images.data_ptr())
        result = torch.full_like(forward(images), float("nan"))

        def replay() -> None:
            self.replayed.append(size)
            result.copy_(forward(images) + (size == self._wrong_at))

        return Captured(images, result, replay)


def graphed(sizes: tuple[int, ...], capture: Recorded) -> CudaGraphForward:
    made = CudaGraphForward(forward, device=CPU, image_shape=SHAPE, batch_sizes=sizes, capture=capture)
    capture.replayed.clear()  # leave out the check after the capture
    return made


def images(count: int) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    ("count", "replayed"),
    [(1, [1]), (2, [2]), (3, [4]), (4, [4]), (5, [6]), (6, [6]), (7, [6, 1]), (12, [6, 6]), (15, [6, 6, 4])],
)
def test_each_batch_replays_the_nearest_bucket_above_and_larger_ones_go_in_parts(
    count: int, replayed: list[int]
) -> None:
    capture = Recorded()
    run = graphed((6, 1, 2, 4), capture)
    x = images(count)
    assert torch.equal(run(x), forward(x))
    assert capture.replayed == replayed
    assert run.padding(count) == sum(replayed) - count


def test_buckets_are_captured_once_largest_first_on_one_input() -> None:
    capture = Recorded()
    run = graphed((1, 2, 2, 4), capture)
    assert capture.captured == [4, 2, 1]
    assert len(set(capture.inputs)) == 1
    assert run.batch_sizes == (1, 2, 4)
    assert run.largest == 4
    assert run.reason is None
    assert run.as_json() == {"batch_sizes": [1, 2, 4], "reason": None}
    assert run.summary == "CUDA graphs for batches of 1, 2, 4"


def test_results_are_fresh_and_hold_no_rows_of_earlier_batches() -> None:
    run = graphed((4,), Recorded())
    first, second = images(4), images(3)
    kept = run(first)
    want = kept.clone()
    assert torch.equal(run(second), forward(second))
    assert torch.equal(kept, want)


@pytest.mark.parametrize("capture", [Recorded(fail_at=2), Recorded(wrong_at=2)], ids=["capture fails", "replay lies"])
def test_one_bad_bucket_turns_all_graphs_off_and_is_reported(
    capture: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = graphed((1, 2, 4), capture)
    x = images(9)
    assert torch.equal(run(x), forward(x))
    assert capture.replayed == []
    assert run.reason is not None
    assert run.reason.startswith("batch 2: ")
    assert "\n" not in run.reason
    assert run.reason in caplog.text
    assert run.padding(3) == 0
    assert run.as_json() == {"batch_sizes": [], "reason": run.reason}
    assert run.summary == f"no CUDA graphs ({run.reason})"


def test_an_error_of_the_forward_is_raised() -> None:
    def broken(_: Tensor) -> Tensor:
        raise ValueError("not a matter of graphs")

    with pytest.raises(ValueError, match="not a matter of graphs"):
        CudaGraphForward(broken, device=CPU, image_shape=SHAPE, batch_sizes=(1,), capture=Recorded())


@pytest.mark.parametrize("sizes", [(), (0, 1)])
def test_bad_bucket_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected at least one, all above 0"):
        graphed(sizes, Recorded())
