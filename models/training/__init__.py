"""Trains models by a recipe, in one process or several, with states on disk that survive a kill."""

from .average import Ema as Ema
from .loop import Start as Start
from .loop import Trainer as Trainer
from .loop import TrainResult as TrainResult
from .mixing import Mixed as Mixed
from .mixing import mix as mix
from .objective import Classification as Classification
from .objective import Distillation as Distillation
from .objective import Objective as Objective
from .objective import accuracy as accuracy
from .objective import confidence_threshold as confidence_threshold
from .objective import cross_entropy as cross_entropy
from .objective import distillation_loss as distillation_loss
from .optimizer import learning_rate as learning_rate
from .optimizer import parameter_groups as parameter_groups
from .processes import Processes as Processes
from .recipe import TrainingRecipe as TrainingRecipe
from .run import as_dense as as_dense
from .source import BatchSource as BatchSource
from .source import TensorSource as TensorSource
from .source import TrainingBatch as TrainingBatch
from .source import seed_of as seed_of
from .state import StateFolder as StateFolder
from .state import TrainingError as TrainingError
