"""Measures a compressed model against the dense one it came from, on held-out calibration images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..divergence import answers, divergence
from ..report import Measured


@dataclass(frozen=True)
class Evaluator:
    """The dense model's answers on the held-out images, to compare with.

    Args:
        batches: normalised images (B, 3, H, W).
        targets: classes of all of them, int64 (n,), where they are known.
        reference: the dense model's log-probabilities (n, classes).
    """

    batches: tuple[Tensor, ...]
    targets: Tensor | None
    reference: Tensor

    @classmethod
    def on(cls, model: nn.Module, batches: Sequence[Tensor], targets: Tensor | None) -> "Evaluator":
        """Take `model`, which is dense, as the reference, on these images."""
        return cls(tuple(batches), targets, answers(model, batches))

    @property
    def before(self) -> Measured:
        """The figures of the dense model itself."""
        return self.of_answers(self.reference)

    def __call__(self, model: nn.Module) -> Measured:
        """The figures of a model on the same images."""
        return self.of_answers(answers(model, self.batches))

    def of_answers(self, outputs: Tensor) -> Measured:
        """The figures of a model that gave these log-probabilities (images, classes)."""
        compared = divergence(self.reference, outputs)
        return Measured(
            top1=self._accuracy(outputs, 1),
            top5=self._accuracy(outputs, 5) if outputs.shape[1] > 5 else None,
            agreement=compared.agreement,
            kl=max(0.0, compared.kl),
            images=compared.images,
        )

    def _accuracy(self, outputs: Tensor, best: int) -> float | None:
        """Percent of images whose class is among the `best` answers."""
        if self.targets is None:
            return None
        hits = (outputs.topk(best).indices == self.targets.to(outputs.device).unsqueeze(1)).any(1)
        return 100 * float(hits.to(torch.float64).mean())


def measured_change(
    reference: nn.Module, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor | None]]
) -> tuple[Measured, Measured]:
    """Measure `reference` and `model` on images that are read once and need not fit in memory.

    Args:
        batches: normalised images (B, 3, H, W), and their classes where they are known; at least one image.
    """
    results = [(answers(reference, [images]), answers(model, [images]), classes) for images, classes in batches]
    before, after = torch.cat([result[0] for result in results]), torch.cat([result[1] for result in results])
    known = [classes for _, _, classes in results if classes is not None]
    evaluator = Evaluator((), torch.cat(known) if len(known) == len(results) else None, before)
    return evaluator.before, evaluator.of_answers(after)
