"""Measures by one gradient how much each layer's change adds to the divergence of a model in which all changed.

Let a model have part a_l of the change that projection makes to layer l. Where KL(dense || model) grows as the
square of each part, half of its slope dKL/da_l at a_l = 1 is what that layer's change is responsible for among
the others, and twice a_l goes into the slope elsewhere. One backward pass gives the slopes of all layers; putting
layers back one by one would take a forward pass for each, and its differences of nearly equal KLs are noisy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ...models.layers.select import linear_layer
from ...models.progress import Count, ignore

BATCH = 16
"""Images of one backward pass, which keeps the activations of all blocks."""


@dataclass(frozen=True)
class Change:
    """A difference added to a linear layer, and the part of it that the model has.

    Args:
        weight: (out_features, in_features).
        bias: (out_features,); a layer without a bias does not have it.
        part: from 0, the layer as it is, to 1.
    """

    weight: Tensor
    bias: Tensor
    part: float


def slopes(
    model: nn.Module,
    changes: Mapping[str, Change],
    batches: Sequence[Tensor],
    reference: Tensor,
    *,
    progress: Count = ignore,
) -> dict[str, float]:
    """Return how steeply KL rises with the part of each change, in nats; the model itself stays as it is.

    Args:
        model: a model in eval mode; `changes` names linear layers of it.
        batches: normalised images (B, 3, H, W).
        reference: log-probabilities (images, classes) that KL is taken from.
        progress: is called with the images done and their number.
    """
    images = torch.cat([*batches])
    reference = reference.clone()  # made in inference mode, as a rule, where nothing may be kept for a backward pass
    sums, done = dict.fromkeys(changes, 0.0), 0
    for batch in images.split(BATCH):
        with torch.inference_mode(False), torch.enable_grad():
            parts = {name: batch.new_tensor(change.part).requires_grad_() for name, change in changes.items()}
            outputs = F.log_softmax(functional_call(model, changed(model, changes, parts), (batch,)).float(), dim=-1)
            loss = F.kl_div(outputs, reference[done : done + len(batch)], reduction="sum", log_target=True)
            grads = torch.autograd.grad(loss, list(parts.values()), allow_unused=True) if parts else ()
        for name, grad in zip(parts, grads, strict=True):
            sums[name] += 0.0 if grad is None else float(grad)
        done += len(batch)
        progress(done, len(images))
    return {name: total / done for name, total in sums.items()}


def changed(model: nn.Module, changes: Mapping[str, Change], parts: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """Parameters of the changed layers, as functions of the parts."""
    tensors = {}
    for name, change in changes.items():
        linear = linear_layer(model, name)
        tensors[f"{name}.weight"] = linear.weight.detach() + parts[name] * change.weight.to(linear.weight)
        if linear.bias is not None:
            tensors[f"{name}.bias"] = linear.bias.detach() + parts[name] * change.bias.to(linear.bias)
    return tensors
