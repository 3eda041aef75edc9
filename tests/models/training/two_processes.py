"""One of two processes that train one model, by DDP and by FSDP: python two_processes.py OUT PORT PORT."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.safetensors_file import write_tensors
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.training import Classification, Processes, TensorSource, Trainer, TrainingRecipe, accuracy
from milkweed.models.training.parallel import joined
from milkweed.models.training.run import as_dense

RECIPE = TrainingRecipe(epochs=4, batch_size=12, lr=1e-3, ema_decay=0.9, warmup_epochs=0.5, label_smoothing=0.1)


def start() -> nn.Module:
    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", num_classes=3, **shape)
    return replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), nblocks=2))


def train(processes: Processes, state: Path | None) -> nn.Module:
    """Four epochs, the last dense, left off in the middle where there is a state."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(48, 3, 16, 16, generator=generator)
    targets = torch.randint(3, (48,), generator=generator)
    source = TensorSource(images, targets, 12, rank=processes.rank, processes=processes.count)
    for last in (2, 4) if state else (4,):
        trainer = Trainer(
            start(),
            Classification(RECIPE),
            source,
            RECIPE,
            state=state,
            evaluate=lambda model: accuracy(model, [(images, targets)]),
            monitor="held_out_loss",
            transform=(3, as_dense),
            stop_after_epochs=last,
            processes=processes,
        )
        result = trainer.train()
    assert result.resumed_at == (8 if state else None)
    return result.model


def _main(out: Path, ports: list[str]) -> None:
    torch.set_num_threads(1)
    for kind, port in zip(("ddp", "fsdp"), ports, strict=True):
        os.environ["MASTER_PORT"] = port  # the rest of what torchrun sets is there
        with joined(kind, torch.device("cpu")) as processes:
            model = train(processes, out / f"{kind}.state")
            write_tensors(out / f"{kind}.{processes.rank}.safetensors", model.state_dict())


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
