"""Measures input statistics of linear layers in which a token counts by how much the answer depends on it.

An error at a patch token of the last block changes nothing, since only the class token is read. So each token is
weighted with the length of the answer's gradient at the layer's output, |d log p(y) / d output| with y drawn from
the model's own answer: the Fisher information's root, which a squared error at that token would be multiplied by
(its square would be the exact second order, but then few tokens are left, and fits learn them by heart: measured
on DeiT-Tiny, docs/compression.md). For the same reason a part of the plain statistics stays in.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...models.hooks import hooked
from ...models.projection.statistics import InputStatistics, Moments

PLAIN_SHARE = 0.3
"""The share of the unweighted statistics in the mixture."""

BATCH = 16
"""Images of one backward pass, which keeps the activations of all blocks."""


def weighted_statistics(
    model: nn.Module, names: Sequence[str], batches: Iterable[Tensor], *, seed: int = 0
) -> dict[str, InputStatistics]:
    """Run `batches` through the model and back, and measure what reaches each named linear layer.

    Args:
        model: a model in eval mode; its answers are class logits (B, classes).
        batches: normalised images (B, 3, H, W).
        seed: the seed of the classes that are drawn.

    Raises:
        ValueError: no image, or an activation that is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    plain, weighted = ({name: Moments() for name in names} for _ in range(2))
    for batch in batches:
        for images in batch.split(BATCH):
            for name, x, weights in _passes(model, names, images, generator):
                plain[name].add(x)
                weighted[name].add(x, weights)
    return {name: _mixed(name, plain[name], weighted[name]) for name in names}


def _mixed(name: str, plain: Moments, weighted: Moments) -> InputStatistics:
    statistics = plain.statistics(name)
    if not weighted.total > 0:  # no answer depends on this layer: all tokens are alike
        return statistics
    return weighted.statistics(name).mixed(statistics, PLAIN_SHARE)


def _passes(
    model: nn.Module, names: Sequence[str], images: Tensor, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Inputs (B, ..., in_features) of each layer, and the weights (B, ...) of their tokens."""
    seen: list[tuple[str, Tensor, Tensor]] = []

    def listen(name: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((name, inputs[0].detach(), output))

    with torch.inference_mode(False), torch.enable_grad(), hooked(model, names, listen):
        # The images ask for a gradient, so that every activation does, whatever the parameters are set to.
        log_probabilities = F.log_softmax(model(images.clone().requires_grad_()).float(), dim=-1)
        odds = log_probabilities.detach().exp().nan_to_num(1.0).cpu()  # the statistics refuse NaN, by the layer's name
        drawn = torch.multinomial(odds, 1, generator=generator).to(log_probabilities.device)
        loss = log_probabilities.gather(1, drawn).sum()
        grads = torch.autograd.grad(loss, [output for _, _, output in seen], allow_unused=True)
    for (name, x, output), grad in zip(seen, grads, strict=True):
        weights = output.new_zeros(output.shape[:-1]) if grad is None else grad.float().norm(dim=-1)
        yield name, x, weights
