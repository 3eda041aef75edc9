"""Gathers mean and covariance of the inputs that linear layers get on calibration images."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputStatistics:
    """First and second moments of a linear layer's inputs.

    Args:
        mean: (in_features,), float64.
        covariance: E[x x^T] - mean mean^T, (in_features, in_features), float64.
        tokens: the number of input vectors seen.
    """

    mean: Tensor
    covariance: Tensor
    tokens: int

    def uncentred(self) -> "InputStatistics":
        """The second moments about zero, for a layer without a bias, which cannot take up a shift of the mean."""
        return InputStatistics(torch.zeros_like(self.mean), self.covariance + self.mean.outer(self.mean), self.tokens)

    def merged(self, other: "InputStatistics") -> "InputStatistics":
        """The statistics of the inputs of both."""
        tokens = self.tokens + other.tokens
        return replace(self.mixed(other, other.tokens / tokens), tokens=tokens)

    def mixed(self, other: "InputStatistics", share: float) -> "InputStatistics":
        """The statistics of inputs of which a `share` is drawn from the other's."""
        complement, gap = 1 - share, self.mean - other.mean
        covariance = complement * self.covariance + share * other.covariance + complement * share * gap.outer(gap)
        return InputStatistics(complement * self.mean + share * other.mean, covariance, self.tokens)


def uncorrelated(features: int) -> InputStatistics:
    """The statistics of inputs of which nothing is known: mean 0, and each varies by 1 and with no other."""
    return InputStatistics(torch.zeros(features, dtype=torch.float64), torch.eye(features, dtype=torch.float64), 0)


class Moments:
    """Sums over all tokens, in float64; each batch's product is float32 about a shift that keeps it exact."""

    def __init__(self) -> None:
        self.tokens, self.total = 0, 0.0
        self._shift: Tensor | None = None
        self._sum: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Count tokens x (..., features), each as often as `weights` (...) says, or once."""
        x = x.detach().flatten(0, -2).float()
        if self._shift is None or self._sum is None or self._products is None:
            # Without it a large mean would cost the covariance its digits.
            self._shift = x.mean(0)
            self._sum = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
            self._products = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
        x = x - self._shift
        counted = x if weights is None else x * weights.detach().flatten().unsqueeze(1)
        self._sum += counted.sum(0, dtype=torch.float64)
        self._products += x.T @ counted
        self.total += x.shape[0] if weights is None else float(weights.sum(dtype=torch.float64))
        self.tokens += x.shape[0]

    def statistics(self, name: str) -> InputStatistics:
        if self._shift is None or self._sum is None or self._products is None:
            raise ValueError(f"layer {name} got no input: calibration needs at least one image")
        mean = self._sum / self.total
        covariance = self._products / self.total - mean.outer(mean)
        if not torch.isfinite(covariance).all():
            raise ValueError(f"layer {name}: its inputs on the calibration images are not finite")
        return InputStatistics((mean + self._shift).cpu(), covariance.cpu(), self.tokens)
