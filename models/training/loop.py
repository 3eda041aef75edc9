"""Trains a model through epochs and steps, evaluates and saves; a run that was killed goes on to the same result."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..progress import SILENT, Progress
from .objective import Objective
from .optimizer import learning_rate
from .processes import Processes
from .recipe import TrainingRecipe
from .run import Best, HistoryRow, TrainingRun
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
    history: tuple[HistoryRow, ...]
    best: HistoryRow | None
    finished: bool
    resumed_at: int | None
    seconds: float


@dataclass
class Trainer:
    """Trains `model` in place; a run with a saved state goes on where it was.

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
        phase: the name of the step for `progress`, and a member of the rows.
    """

    model: nn.Module
    objective: Objective
    source: BatchSource
    recipe: TrainingRecipe
    _: KW_ONLY
    state: Path | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Evaluate | None = None
    evaluate_every: int = 1
    monitor: str | None = None
    patience: int | None = None
    transform: Transform | None = None
    stop_after_epochs: int | None = None
    save_every_seconds: float = 60.0
    keep_states_at: Collection[int] = ()
    keep_in: Path | None = None
    start: Start | None = None
    progress: Progress = SILENT
    phase: str = "train"
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        if self.monitor is None and self.patience is not None:
            raise ValueError(f"patience {self.patience}: nothing is monitored")
        if (self.monitor is not None and self.evaluate is None) or (self.keep_states_at and self.keep_in is None):
            raise ValueError("monitor needs evaluate, and keep_states_at needs keep_in")
        self._run = TrainingRun(self.model, self.recipe, self.processes)
        self._folder = None if self.state is None else StateFolder(self.state)
        self._decided = {**self.fingerprint, "recipe": dict(self.recipe.to_dict()), "steps": self.source.steps}

    def train(self) -> TrainResult:
        """Train to the end, or to where the run is to be left off.

        Raises:
            TrainingError: a state of another run or one that another process trains, a loss that is not finite, a state
                that cannot be written or read.
        """
        with ExitStack() as stack:
            if self._folder is not None and self.processes.rank == 0:
                stack.enter_context(self._folder.locked())
            return self._train()

    def _train(self) -> TrainResult:
        run, steps, epochs = self._run, self.source.steps, self.recipe.epochs
        last_epoch = epochs if self.stop_after_epochs is None else min(self.stop_after_epochs, epochs)
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
        finished = run.step == epochs * steps or self._out_of_patience()
        best = None if run.best is None else run.best.row
        return TrainResult(run.kept(), tuple(run.history), best, finished, resumed_at, run.seconds)

    def _epoch(self, epoch: int) -> None:
        run, steps = self._run, self.source.steps
        total = self.recipe.epochs * steps
        for images, targets in self.source.batches(epoch, run.step - epoch * steps):
            rate = learning_rate(self.recipe, run.step, steps)
            run.learn(self.objective, images, targets, rate)
            self.progress.step(self.phase, run.step, total)
            if self._look_due():
                run.check_losses(steps)
                self._save_if_due()
        if run.step != (epoch + 1) * steps:
            raise TrainingError(f"epoch {epoch + 1} ended at step {run.step}: the source says {steps} steps an epoch")
        run.check_losses(steps)
        self._tick()
        row = {"step": run.step, "phase": self.phase, "epoch": epoch + 1, "loss": run.take_mean_loss(), "lr": rate}
        last = epoch + 1 == self.recipe.epochs
        self._add_row(row, evaluate=last or (epoch + 1) % self.evaluate_every == 0)
        self._save()
        if self.keep_in is not None and epoch + 1 in self.keep_states_at:
            self._write(StateFolder(self.keep_in / f"epoch-{epoch + 1}"))

    def _look_due(self) -> bool:
        # One process alone may look whenever a save is due; several must look at the same steps.
        alone = self.processes.count == 1
        return self._run.step % LOOK_STEPS == 0 or (alone and self._seconds_since_save() >= self.save_every_seconds)

    def _add_row(self, row: HistoryRow, evaluate: bool) -> None:
        if evaluate and self.evaluate is not None:
            model = self._run.answering()
            figures: Mapping[str, float] = {}
            if self.processes.rank == 0:
                with torch.no_grad():
                    figures = self.evaluate(model)
            row |= self.processes.from_first(figures)
            if self.monitor is not None:
                self._choose(self.monitor, row)
        row["seconds"] = round(self._run.seconds, 3)
        self._run.history.append(row)
        self.progress.row(row)

    def _choose(self, monitor: str, row: HistoryRow) -> None:
        """Keep the model of `row` if it is the best so far."""
        run, value = self._run, float(row[monitor])
        better = run.best is None or (value > run.best.value if monitor in HIGHER_IS_BETTER else value < run.best.value)
        if better:
            tensors = {name: tensor.detach().clone() for name, tensor in run.answering_tensors().items()}
            run.best = Best(value, row, tensors)
        elif run.best is not None:
            run.best.since += 1

    def _out_of_patience(self) -> bool:
        best = self._run.best
        return self.patience is not None and best is not None and best.since >= self.patience

    def _resume(self) -> int | None:
        saved = None if self._folder is None else self._folder.load()
        if saved is not None and self._folder is not None:
            check_fingerprint(self._folder.path, saved.fingerprint, self._decided)
            return self._restore(saved)
        if self.start is None:
            return None
        other = StateFolder(self.start.path).load()
        if other is None:
            raise TrainingError(f"state {self.start.path}: there is none to start from")
        expected = {**self.start.fingerprint, "recipe": self._decided["recipe"], "steps": self._decided["steps"]}
        check_fingerprint(self.start.path, other.fingerprint, expected)
        if self.transform is not None and other.progress["step"] > self.transform[0] * self.source.steps:
            raise TrainingError(
                f"state {self.start.path}: is of step {other.progress['step']}, layers are to be replaced at "
                f"step {self.transform[0] * self.source.steps} already"
            )
        return self._restore(other)

    def _restore(self, saved: Saved) -> int:
        if saved.progress["transformed"] and self.transform is not None:
            self._run.transform(self.transform[1])
        self._run.restore(saved.progress, saved.tensors)
        return self._run.step

    def _save_if_due(self) -> None:
        due = self._seconds_since_save() >= self.save_every_seconds
        if self.processes.from_first({"due": due})["due"]:
            self._save()

    def _save(self) -> None:
        if self._folder is not None:
            self._tick()
            self._write(self._folder)
        self._saved_at = time.monotonic()

    def _write(self, folder: StateFolder) -> None:
        tensors = self._run.tensors()
        if self.processes.rank == 0:
            folder.save(self._decided, self._run.progress(), tensors)

    def _seconds_since_save(self) -> float:
        return time.monotonic() - self._saved_at

    def _tick(self) -> None:
        now = time.monotonic()
        self._run.seconds += now - self._clock
        self._clock = now
