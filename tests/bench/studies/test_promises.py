"""The study of promises: whom its rules choose by recorded answers, and when a promise counts as broken."""

import pytest
import torch

from milkweed.bench.studies.promises import promises

IMAGES, CLASSES = 120, 5


def recorded(lost: float) -> dict[str, torch.Tensor]:
    """A dense model that is always right and sure, its equal, and a faster one that loses a share of the images."""
    labels = torch.arange(IMAGES) % CLASSES
    sure = torch.full((IMAGES, CLASSES), 0.01).scatter_(1, labels[:, None], 0.96).double().log()
    wrong = sure.roll(1, 1)
    wrong[int(lost * IMAGES) :] = sure[int(lost * IMAGES) :]
    return {"labels": labels, "dense": sure, "bfloat16": sure + 1e-9, "int8": wrong, "cost": torch.tensor([2.0, 1.0])}


@pytest.mark.parametrize(("lost", "chosen"), [(0.5, "bfloat16"), (0.0, "int8")])
def test_a_faster_model_is_chosen_unless_it_loses_more_than_was_promised(lost: float, chosen: str) -> None:
    for row in promises(recorded(lost), judging=60, sets=4, drops=[5.0]):
        assert row["chosen_percent"] == {chosen: 100}, row["rule"]
        assert (row["nothing_percent"], row["broken_percent"]) == (0, 0)


def test_a_promise_is_broken_where_all_images_lose_more_than_those_that_judged() -> None:
    unsure = promises(recorded(0.5), judging=4, sets=40, drops=[30.0])
    assert any(row["broken_percent"] > 0 for row in unsure if row["rule"] == "counted, with labels")
