"""Holds a model in training with all that a step changes, and turns it into a saved state and back."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..projection.to_dense import model_to_dense
from .average import Ema
from .objective import Objective
from .optimizer import load_moments, make_optimizer, moments, set_rate
from .processes import Processes
from .recipe import TrainingRecipe
from .source import seed_of
from .state import TrainingError

HistoryRow = dict[str, Any]
"""A row of a run's history: `step`, `phase`, `epoch`, and the figures of that step."""

_AMP = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Best:
    """The best model that an evaluation has found: its figure, row and weights, and the evaluations since."""

    value: float
    row: HistoryRow
    tensors: dict[str, Tensor]
    since: int = 0


class TrainingRun:
    """A model in training.

    Args:
        model: a model on its device; its parameters are changed in place.
        processes: the processes that share the run; each has the same model.
    """

    def __init__(self, model: nn.Module, recipe: TrainingRecipe, processes: Processes) -> None:
        self.recipe, self.processes = recipe, processes
        self.device = next(model.parameters()).device
        self.step = 0
        self.seconds = 0.0
        self.history: list[HistoryRow] = []
        self.best: Best | None = None
        self.transformed = False
        self.loss_sum, self.loss_count = 0.0, 0
        self._pending: list[tuple[int, Tensor]] = []
        self._unfused = self.device.type == "cpu" and recipe.amp == "bfloat16"
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.amp == "float16")
        self._take(model)
        self.ema = None if recipe.ema_decay is None else Ema(recipe.ema_decay, self.model.state_dict())

    def _take(self, model: nn.Module) -> None:
        self._called = model  # lets go of a wrapper, whose hooks would reduce gradients a second time
        # A copy to answer with: the model itself may be divided among processes, or not be the average.
        alone = self.recipe.ema_decay is None and self.processes.count == 1
        self._answering = model if alone else copy.deepcopy(model)
        self.model = model
        self._called = self.processes.wrap(model)
        self.optimizer = make_optimizer(model, self.recipe)

    def learn(self, objective: Objective, images: Tensor, targets: Tensor | None, rate: float) -> None:
        """Take one step; `check_losses` looks at its loss later."""
        torch.manual_seed(seed_of(self.recipe.seed, self.step, self.processes.rank))  # dropout, drop path, mixing
        images = images.to(self.device, non_blocking=True)
        targets = None if targets is None else targets.to(self.device, non_blocking=True)
        set_rate(self.optimizer, rate)
        self._called.train()
        with self._autocast(), unfused_attention(self.model) if self._unfused else nullcontext():
            loss = objective(self._called, images, targets)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(self.optimizer)
        norm = self._clip()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.model.state_dict(), self.step)
        self._pending.append((self.step, torch.stack((loss.detach().float(), norm))))
        self.step += 1

    def check_losses(self, steps_per_epoch: int) -> None:
        """Add up the losses of the steps since the last call. Collective.

        Raises:
            TrainingError: a loss or a gradient is not finite.
        """
        if not self._pending:
            return
        values = self.processes.mean(torch.stack([value for _, value in self._pending])).tolist()
        for (step, _), (loss, norm) in zip(self._pending, values, strict=True):
            if not isfinite(loss) or not isfinite(norm):
                what = f"loss is {loss}" if not isfinite(loss) else "gradients are not finite"
                raise TrainingError(
                    f"step {step} (epoch {step // steps_per_epoch + 1}): the {what} with lr {self.recipe.lr:g}: "
                    "the last state saved is from before; a smaller lr may help"
                )
            self.loss_sum += loss
            self.loss_count += 1
        self._pending.clear()

    def take_mean_loss(self) -> float:
        """The mean loss since the last call."""
        mean = self.loss_sum / max(1, self.loss_count)
        self.loss_sum, self.loss_count = 0.0, 0
        return mean

    def answering(self) -> nn.Module:
        """The model that would be kept now, in eval mode: with the average's weights if there is one. Collective."""
        if self._answering is not self.model:
            self._answering.load_state_dict(self.answering_tensors())
        return self._answering.eval()

    def answering_tensors(self) -> dict[str, Tensor]:
        """The weights of the model that would be kept now, not copied. Collective."""
        return self.processes.whole(self.model.state_dict() if self.ema is None else self.ema.tensors)

    def kept(self) -> nn.Module:
        """The model that the run ends with: the best if one was chosen, else as `answering`. Collective."""
        model = self.answering()
        if self.best is not None:
            model.load_state_dict(self.best.tensors)
        return model

    def transform(self, change: Callable[[nn.Module], nn.Module]) -> None:
        """Replace layers; parameters that stay keep their moments, and the average is changed alike. Collective.

        The weights that were best so far have the old structure and no longer count.
        """
        saved = self.processes.whole(moments(self.optimizer, self._names()))
        average = None if self.ema is None else self.processes.whole(self.ema.tensors)
        bare = self.model
        if self.processes.count > 1:
            bare = self._answering
            bare.load_state_dict(self.processes.whole(self.model.state_dict()))
        averaged = copy.deepcopy(bare)
        self._take(change(bare))
        if average is not None:
            averaged.load_state_dict(average)
            self.ema = Ema(self.recipe.ema_decay or 0.0, self.model.state_dict())
            self._fill(self.ema.tensors, change(averaged).state_dict())
        self._load_moments(_of_parameters(saved, dict(self.model.named_parameters())))
        self.transformed, self.best = True, None

    def progress(self) -> HistoryRow:
        """The plain data of a saved state."""
        best = self.best
        return {
            "step": self.step,
            "seconds": self.seconds,
            "transformed": self.transformed,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "history": self.history,
            "best": None if best is None else {"value": best.value, "row": best.row, "since": best.since},
            "scaler": self._scaler.state_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a saved state. Collective."""
        parts = {
            "model": self.processes.whole(self.model.state_dict()),
            "moments": self.processes.whole(moments(self.optimizer, self._names())),
            "average": {} if self.ema is None else self.processes.whole(self.ema.tensors),
            "best": {} if self.best is None else self.best.tensors,
        }
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def restore(self, progress: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a saved state; the model must have its structure already. Collective."""
        self.step, self.seconds = progress["step"], progress["seconds"]
        self.transformed, self.history = progress["transformed"], list(progress["history"])
        self.loss_sum, self.loss_count = progress["loss_sum"], progress["loss_count"]
        self._scaler.load_state_dict(progress["scaler"])
        self._fill(self.model.state_dict(), _part(tensors, "model"))
        self._load_moments(_part(tensors, "moments"))
        if self.ema is not None:
            self._fill(self.ema.tensors, _part(tensors, "average"))
        best = progress["best"]
        if best is not None:
            weights = {name: tensor.to(self.device) for name, tensor in _part(tensors, "best").items()}
            self.best = Best(best["value"], best["row"], weights, best["since"])

    def _load_moments(self, saved: dict[str, Tensor]) -> None:
        parameters = dict(self.model.named_parameters())
        placed = {}
        for key, value in saved.items():
            parameter = parameters[key.rpartition("/")[0]]
            same = value.shape == parameter.shape
            placed[key] = self.processes.part(value, parameter) if same else value.to(parameter.device)
        load_moments(self.optimizer, self._names(), placed)

    @torch.no_grad()
    def _fill(self, into: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
        if into.keys() != saved.keys():
            odd = sorted(into.keys() ^ saved.keys())[0]
            raise TrainingError(f"the saved state and the model differ: only one of them has {odd}")
        for name, tensor in into.items():
            tensor.copy_(self.processes.part(saved[name], tensor))

    def _clip(self) -> Tensor:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = self.processes.clip(parameters, self.recipe.clip_norm or inf)
        # With float16 a scale that was too large shows as infinity; the scaler skips the step and halves it.
        return torch.zeros_like(norm) if self._scaler.is_enabled() else norm

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _AMP.get(self.recipe.amp)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _names(self) -> dict[Tensor, str]:
        return {parameter: name for name, parameter in self.model.named_parameters()}


@contextmanager
def unfused_attention(model: nn.Module) -> Iterator[None]:
    """Compute timm's attention layers by two products and a softmax for the block.

    On a CPU the gradient of PyTorch's fused attention takes several times as long in bfloat16.
    """
    fused: list[Any] = [module for module in model.modules() if getattr(module, "fused_attn", False)]
    for module in fused:
        module.fused_attn = False
    try:
        yield
    finally:
        for module in fused:
            module.fused_attn = True


def as_dense(model: nn.Module) -> nn.Module:
    """Replace every structured layer of `model` by the dense one that computes the same, in place; returns the model.

    Training sparse and then going on dense is S2D. Source: Monarch (arXiv 2204.00595), section 4.2, reverse
    sparsification.

    Raises:
        ValueError: a layer that no dense layer can stand for (a gated Pixelfly).
    """
    model_to_dense(model)
    return model


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _of_parameters(saved: dict[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The moments of the parameters that are still there, of the same shape."""
    whole = {
        name
        for key, value in saved.items()
        if (name := key.rpartition("/")[0]) in parameters and value.shape == parameters[name].shape
    }
    return {key: value for key, value in saved.items() if key.rpartition("/")[0] in whole}
