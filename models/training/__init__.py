"""Trains models: recipe, schedule, objectives, running average, states on disk, one process or several."""

from .average import Ema
from .errors import TrainingError
from .evaluation import accuracy
from .loop import Start, TrainResult, train_model
from .mixing import Mixed, mix
from .objective import Classification, Distillation, Objective, cross_entropy, distillation_loss
from .optimizer import make_optimizer, parameter_groups
from .processes import Alone, Processes
from .randomness import seed_of, seed_step
from .recipe import Recipe
from .s2d import densified
from .schedule import learning_rate
from .source import Batch, BatchSource, TensorSource
from .state import Saved, StateFolder

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
    "make_optimizer",
    "mix",
    "parameter_groups",
    "seed_of",
    "seed_step",
    "train_model",
]
