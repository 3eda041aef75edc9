"""Averaged weights without names are put in their places by order, or refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.models.errors import CheckpointError
from milkweed.models.importing.wrappers import averages_of, with_averages

STATE = {
    "cls_token": torch.zeros(1, 1, 4),
    "patch_embed.attention1.w": torch.zeros(2, 4),  # frozen: a parameter that is not trained
    "patch_embed.attention1.kqv.weight": torch.zeros(12, 4),
    "pos_embed.pe": torch.zeros(1, 5, 4),  # a buffer
    "bn.weight": torch.zeros(4),
    "bn.bias": torch.zeros(4),
    "bn.running_mean": torch.zeros(4),  # it has the shape of norm.weight: only its name tells that it is a buffer
    "bn.running_var": torch.zeros(4),
    "bn.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    "norm.weight": torch.zeros(4),
    "fc1.sparse.layout": torch.zeros(2, 2, dtype=torch.int32),
    "head.bias": torch.zeros(3),
}
TRAINED = ["cls_token", "patch_embed.attention1.kqv.weight", "bn.weight", "bn.bias", "norm.weight", "head.bias"]
ALL = [*TRAINED[:1], "patch_embed.attention1.w", *TRAINED[1:]]


def numbered(keys: list[str]) -> list[Tensor]:
    return [torch.full_like(STATE[key], number) for number, key in enumerate(keys, 1)]


@pytest.mark.parametrize("keys", [TRAINED, ALL])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_each_average_goes_to_its_parameter(keys: list[str], prefix: str) -> None:
    state = {prefix + key: tensor for key, tensor in STATE.items()}
    found = with_averages(Path("x"), state, numbered(keys))
    assert list(found) == list(state)
    for key in STATE:
        wanted = keys.index(key) + 1 if key in keys else 0
        assert bool((found[prefix + key] == wanted).all()), key


@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: [*s, s[0]], lambda s: [s[1], s[0], *s[2:]]])
def test_a_list_of_another_model_is_refused(change: object) -> None:
    averages = change(numbered(TRAINED))  # type: ignore[operator]
    with pytest.raises(
        CheckpointError, match=rf"x: its averaged weights are a list of {len(averages)} tensors without"
    ):
        with_averages(Path("x"), STATE, averages)


def test_averages_of_finds_only_lists_of_tensors() -> None:
    tensors = [torch.zeros(1)]
    assert averages_of({"callbacks": {"A": {"best": 1}, "B": {"shadow_params": tensors}}}) == ("'B'", tensors)
    for callbacks in (None, {}, [], {"A": 3}, {"A": {"shadow_params": None}}, {"A": {"shadow_params": [1]}}):
        assert averages_of({"callbacks": callbacks}) is None
    assert averages_of({}) is None
