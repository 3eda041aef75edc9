"""Trains a model through epochs and steps, evaluates and saves; a run that was killed goes on to the same result."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .objective import Objective
from .optimizer import learning_rate
from .processes import Alone, Processes
from .recipe import Recipe
from .run import Best, Row, Run
from .source import BatchSource
from .state import Saved, StateFolder, TrainingError, check_fingerprint

Evaluate = Callable[[nn.Module], Mapping[str, float]]
"""Measures a model in eval mode; the names of its figures become members of the history's rows."""

Transform = tuple[int, Callable[[nn.Module], nn.Module]]
"""After how many epochs layers are replaced, and the function that replaces them in a model."""

LOOK_STEPS = 16
"""Steps between two looks at the losses, and so between two saves: a look waits for the device."""

HIGHER_IS_BETTER = ("top1", "top5", "agreement")


@dataclass(frozen=True)
class Start:
    """The kept state and the fingerprint of another run, whose first epochs a run shares and need not repeat."""

    path: Path
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    Args:
        model: the best if a figure was monitored, else the last (its average with `ema_decay`), in eval mode.
        history: a row for each epoch, and one before the first if a figure was monitored.
        best: the row of `model` if a figure was monitored.
        finished: False where `stop_after_epochs` ended it.
        resumed_at: the step that a saved state brought it to; None if it began anew.
        seconds: the time of all its parts together.
    """

    model: nn.Module
    history: tuple[Row, ...]
    best: Row | None
    finished: bool
    resumed_at: int | None
    seconds: float


def train_model(
    model: nn.Module,
    objective: Objective,
    source: BatchSource,
    recipe: Recipe,
    *,
    state: Path | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    monitor: str | None = None,
    patience: int | None = None,
    transform: Transform | None = None,
    stop_after_epochs: int | None = None,
    save_every_seconds: float = 60.0,
    keep_states_at: Collection[int] = (),
    keep_in: Path | None = None,
    start: Start | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_row: Callable[[Row], None] | None = None,
    phase: str = "train",
    processes: Processes | None = None,
) -> TrainResult:
    """Train `model` in place; a run with a saved state goes on where it was.

    Every random choice is a function of the recipe's seed and the place in the run: a run that was killed and
    started again ends with the weights of one that was not, bit for bit (on one machine, one number of threads).

    Args:
        model: a model on the device to train on.
        state: folder for the run's state; None saves nothing.
        fingerprint: plain JSON data that a saved state must agree with, beside the recipe and the source's steps.
        evaluate: is called every `evaluate_every` epochs and after the last, in the first process alone.
        monitor: the figure by which the best model is chosen, the one before the first step included; lower is
            better, unless it is one of HIGHER_IS_BETTER. None keeps the last model.
        patience: stop after so many evaluations without a better one.
        transform: see `Transform`; moments of the parameters that stay are kept, and the schedule goes on.
        stop_after_epochs: leave off there; the state stays for the rest.
        save_every_seconds: time between two saves; the end of an epoch saves too.
        keep_states_at, keep_in: keep a copy of the state after these epochs, in folders `epoch-N` of `keep_in`.
        start: begin at another run's kept state, where there is no own state yet.
        progress: is called with the steps done and in all.
        on_row: is called with each new row of the history.
        phase: a member of the rows.

    Raises:
        TrainingError: a state of another run, a loss that is not finite, a state that cannot be written or read.
    """
    if monitor is None and patience is not None:
        raise ValueError(f"patience {patience}: nothing is monitored")
    if (monitor is not None and evaluate is None) or (keep_states_at and keep_in is None):
        raise ValueError("monitor needs evaluate, and keep_states_at needs keep_in")
    loop = _Loop(
        run=Run(model, recipe, processes or Alone()),
        objective=objective,
        source=source,
        folder=None if state is None else StateFolder(state),
        fingerprint={**(fingerprint or {}), "recipe": dict(recipe.to_dict()), "steps": source.steps},
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        monitor=monitor,
        patience=patience,
        transform=transform,
        save_every_seconds=save_every_seconds,
        keep_in={epoch: keep_in / f"epoch-{epoch}" for epoch in keep_states_at} if keep_in else {},
        start=start,
        progress=progress,
        on_row=on_row,
        phase=phase,
    )
    return loop.train(recipe.epochs if stop_after_epochs is None else min(stop_after_epochs, recipe.epochs))


@dataclass
class _Loop:
    run: Run
    objective: Objective
    source: BatchSource
    folder: StateFolder | None
    fingerprint: Mapping[str, Any]
    evaluate: Evaluate | None
    evaluate_every: int
    monitor: str | None
    patience: int | None
    transform: Transform | None
    save_every_seconds: float
    keep_in: Mapping[int, Path]
    start: Start | None
    progress: Callable[[int, int], None] | None
    on_row: Callable[[Row], None] | None
    phase: str

    def train(self, last_epoch: int) -> TrainResult:
        run, steps = self.run, self.source.steps
        resumed_at = self._resume()
        self._clock = self._saved_at = time.monotonic()
        if run.step == 0 and not run.history and self.monitor is not None:
            self._add_row({"step": 0, "phase": self.phase, "epoch": 0}, evaluate=True)
        while run.step < last_epoch * steps and not self._out_of_patience():
            epoch = run.step // steps
            if self.transform is not None and epoch == self.transform[0] and not run.transformed:
                run.transform(self.transform[1])
            self._epoch(epoch)
        self._tick()
        finished = run.step == run.recipe.epochs * steps or self._out_of_patience()
        best = None if run.best is None else run.best.row
        return TrainResult(run.kept(), tuple(run.history), best, finished, resumed_at, run.seconds)

    def _epoch(self, epoch: int) -> None:
        run, steps = self.run, self.source.steps
        total = run.recipe.epochs * steps
        for images, targets in self.source.batches(epoch, run.step - epoch * steps):
            rate = learning_rate(run.recipe, run.step, steps)
            run.learn(self.objective, images, targets, rate)
            if self.progress:
                self.progress(run.step, total)
            if self._look_due():
                run.check_losses(steps)
                self._save_if_due()
        if run.step != (epoch + 1) * steps:
            raise TrainingError(f"epoch {epoch + 1} ended at step {run.step}: the source says {steps} steps an epoch")
        run.check_losses(steps)
        self._tick()
        row = {"step": run.step, "phase": self.phase, "epoch": epoch + 1, "loss": run.take_mean_loss(), "lr": rate}
        last = epoch + 1 == run.recipe.epochs
        self._add_row(row, evaluate=last or (epoch + 1) % self.evaluate_every == 0)
        self._save()
        if epoch + 1 in self.keep_in:
            self._write(StateFolder(self.keep_in[epoch + 1]))

    def _look_due(self) -> bool:
        # One process alone may look whenever a save is due; several must look at the same steps.
        alone = self.run.processes.count == 1
        return self.run.step % LOOK_STEPS == 0 or (alone and self._seconds_since_save() >= self.save_every_seconds)

    def _add_row(self, row: Row, evaluate: bool) -> None:
        if evaluate and self.evaluate is not None:
            model = self.run.answering()
            figures: Mapping[str, float] = {}
            if self.run.processes.rank == 0:
                with torch.no_grad():
                    figures = self.evaluate(model)
            row |= self.run.processes.from_first(figures)
            if self.monitor is not None:
                self._choose(self.monitor, row)
        row["seconds"] = round(self.run.seconds, 3)
        self.run.history.append(row)
        if self.on_row:
            self.on_row(row)

    def _choose(self, monitor: str, row: Row) -> None:
        """Keep the model of `row` if it is the best so far."""
        run, value = self.run, float(row[monitor])
        better = run.best is None or (value > run.best.value if monitor in HIGHER_IS_BETTER else value < run.best.value)
        if better:
            tensors = {name: tensor.detach().clone() for name, tensor in run.answering_tensors().items()}
            run.best = Best(value, row, tensors)
        elif run.best is not None:
            run.best.since += 1

    def _out_of_patience(self) -> bool:
        best = self.run.best
        return self.patience is not None and best is not None and best.since >= self.patience

    def _resume(self) -> int | None:
        own = None if self.folder is None else self.folder.load()
        if own is not None and self.folder is not None:
            check_fingerprint(self.folder.path, own.fingerprint, self.fingerprint)
            return self._restore(own)
        if self.start is None:
            return None
        other = StateFolder(self.start.path).load()
        if other is None:
            raise TrainingError(f"state {self.start.path}: there is none to start from")
        wanted = {**self.start.fingerprint, "recipe": self.fingerprint["recipe"], "steps": self.fingerprint["steps"]}
        check_fingerprint(self.start.path, other.fingerprint, wanted)
        if self.transform is not None and other.progress["step"] > self.transform[0] * self.source.steps:
            raise TrainingError(
                f"state {self.start.path}: is of step {other.progress['step']}, layers are to be replaced at "
                f"step {self.transform[0] * self.source.steps} already"
            )
        return self._restore(other)

    def _restore(self, saved: Saved) -> int:
        if saved.progress["transformed"] and self.transform is not None:
            self.run.transform(self.transform[1])
        self.run.restore(saved.progress, saved.tensors)
        return self.run.step

    def _save_if_due(self) -> None:
        due = self._seconds_since_save() >= self.save_every_seconds
        if self.run.processes.from_first({"due": due})["due"]:
            self._save()

    def _save(self) -> None:
        if self.folder is not None:
            self._tick()
            self._write(self.folder)
        self._saved_at = time.monotonic()

    def _write(self, folder: StateFolder) -> None:
        tensors = self.run.tensors()
        if self.run.processes.rank == 0:
            folder.save(self.fingerprint, self.run.progress(), tensors)

    def _seconds_since_save(self) -> float:
        return time.monotonic() - self._saved_at

    def _tick(self) -> None:
        now = time.monotonic()
        self.run.seconds += now - self._clock
        self._clock = now
