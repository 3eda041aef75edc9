"""Trains models by a recipe, in one process or several, with states on disk that survive a kill."""

from .average import Ema
from .loop import Start, TrainResult, train_model
from .mixing import Mixed, mix
from .objective import Classification, Distillation, Objective, accuracy, cross_entropy, distillation_loss
from .optimizer import learning_rate, parameter_groups
from .processes import Alone, Processes
from .recipe import Recipe
from .run import densified
from .source import Batch, BatchSource, TensorSource, seed_of
from .state import Saved, StateFolder, TrainingError

__all__ = [
    "Alone",
    "Batch",
    "BatchSource",
    "Classification",
    "Distillation",
    "Ema",
    "Mixed",
    "Objective",
    "Processes",
    "Recipe",
    "Saved",
    "Start",
    "StateFolder",
    "TensorSource",
    "TrainResult",
    "TrainingError",
    "accuracy",
    "cross_entropy",
    "densified",
    "distillation_loss",
    "learning_rate",
    "mix",
    "parameter_groups",
    "seed_of",
    "train_model",
]
