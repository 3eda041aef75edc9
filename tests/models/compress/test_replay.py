"""Replaying what did not change: the same answers as from running everything, and no trace in the model."""

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.compress.divergence import answers, diverge
from milkweed.models.compress.replay import Replay
from milkweed.models.compress.substitution import substituted

LAYERS = ["blocks.0.attn.qkv", "blocks.1.mlp.fc2", "head"]


@pytest.mark.parametrize("name", LAYERS)
def test_answers_with_a_changed_layer_are_those_of_a_whole_run(vit: nn.Module, pictures: Tensor, name: str) -> None:
    batches = pictures[:12].split(8)
    replay = Replay(vit, batches)
    assert torch.equal(replay.record(), answers(vit, batches))
    linear = vit.get_submodule(name)
    with substituted(linear, linear.weight * 0.5, linear.bias + 1):
        want = answers(vit, batches)
        assert torch.equal(replay.changed(name), want)
    assert not torch.equal(want, answers(vit, batches))
    assert torch.equal(replay.changed(name), answers(vit, batches))


def test_blocks_before_the_layer_do_not_run_again(vit: nn.Module, pictures: Tensor) -> None:
    replay, ran = Replay(vit, [pictures[:4]]), []
    replay.record()
    for block in (0, 1):
        vit.get_submodule(f"blocks.{block}.attn.qkv").register_forward_hook(lambda *_, block=block: ran.append(block))
    replay.changed("blocks.1.attn.qkv")
    assert ran == [1]
    replay.changed("blocks.0.attn.qkv")
    assert ran == [1, 0, 1]
    assert not any("forward" in vars(module) for module in vit.modules())


def test_divergence_is_by_its_definition(vit: nn.Module, pictures: Tensor) -> None:
    reference = answers(vit, [pictures])
    head = vit.get_submodule("head")
    with substituted(head, head.weight * 0.2, head.bias), torch.no_grad():
        found = diverge(vit, pictures.split(16), reference)
        p, q = reference.double().exp(), vit(pictures).double().softmax(-1)
    assert found.kl == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-4)
    assert found.agreement == 100 * float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert found.images == 100
    same = diverge(vit, [pictures], reference)
    assert (abs(same.kl) < 1e-6, same.agreement) == (True, 100)
