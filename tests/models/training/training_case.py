"""A small run with everything that a step draws by chance; as a program: is killed at steps.

python training_case.py STATE STEP..."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.progress import Progress
from milkweed.models.training import Classification, TensorSource, Trainer, TrainingRecipe, TrainResult, accuracy
from milkweed.models.training.run import as_dense

RECIPE = TrainingRecipe(epochs=6, batch_size=16, lr=1e-2, mixup=0.4, cutmix=1.0, ema_decay=0.9, warmup_epochs=0.5)
S2D_EPOCH = 4
STEPS = 6


def small_model() -> nn.Module:
    """Monarch, dropout, and a norm whose running statistics must be saved too."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32)
    return nn.Sequential(
        nn.Flatten(), MonarchLinear(48, 32, nblocks=2), nn.GELU(), nn.Dropout(0.2), norm, nn.Linear(32, 3)
    )


def images(count: int = 96) -> tuple[Tensor, Tensor]:
    """Noise of which the class is a part."""
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(3, (count,), generator=generator)
    pixels = torch.randn(count, 3, 4, 4, generator=generator)
    pixels[torch.arange(count), targets] += 0.5
    return pixels, targets


def small_run(state: Path | None = None, **how: Any) -> TrainResult:
    """The run of the case; `how` overrides the arguments of its `Trainer`."""
    pixels, targets = images()
    recipe = how.pop("recipe", RECIPE)
    arguments: dict[str, Any] = {
        "evaluate": lambda model: accuracy(model, [(pixels, targets)]),
        "transform": (S2D_EPOCH, as_dense),
        "save_every_seconds": 0.0,
        **how,
    }
    source = TensorSource(pixels, targets, recipe.batch_size)
    model = arguments.pop("model", None) or small_model()
    objective = arguments.pop("objective", None) or Classification(recipe)
    return Trainer(model, objective, source, recipe, state=state, **arguments).train()


def _killed_at(state: Path, step: int) -> int:
    """Run in a process that ends itself without a word after `step`; the signal it died of."""
    child = os.fork()
    if child == 0:
        die = Progress(step=lambda _, done, __: os.kill(os.getpid(), signal.SIGKILL) if done == step else None)
        small_run(state, progress=die)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print([_killed_at(Path(sys.argv[1]), int(step)) for step in sys.argv[2:]])
