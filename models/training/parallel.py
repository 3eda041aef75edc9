"""Trains one model in several processes that torchrun started: DDP, each with all of it, or FSDP, each with a part."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from ..bundle.strict_json import canonical_json, parse_json
from .processes import Processes

PARALLEL = ("ddp", "fsdp")
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def joined(kind: str | None, device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun has started, as a group for the block; `kind` None is this process alone.

    Args:
        kind: one of PARALLEL.
        device: this process's own device; CUDA talks through NCCL, a CPU through gloo.

    Raises:
        ValueError: an unknown kind, or not started by torchrun.
    """
    if kind is None:
        yield Processes()
        return
    if kind not in PARALLEL:
        raise ValueError(f"parallel {kind!r} must be one of {', '.join(PARALLEL)}")
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise ValueError(f"parallel {kind}: {', '.join(missing)} not in the environment: start it with torchrun")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ddp(device) if kind == "ddp" else Fsdp(device)
    finally:
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """The CUDA device that belongs to this process on its machine; a CPU is returned as it is."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if device.type == "cuda" else device


class Ddp(Processes):
    """Each process has the whole model and its part of each batch; gradients are averaged.

    On CUDA batch norms take the statistics of all processes; gloo has no such norm, so that on CPUs each takes its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.device.type != "cuda":
            return DistributedDataParallel(model)
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return DistributedDataParallel(model, device_ids=[self.device])

    def mean(self, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values / self.count

    def from_first(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        # JSON in a tensor: torch's own way of sending objects is pickle.
        data = torch.frombuffer(bytearray(canonical_json(dict(figures))), dtype=torch.uint8).to(self.device)
        length = torch.tensor(len(data), device=self.device)
        dist.broadcast(length, 0)
        data = data if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, 0)
        received: dict[str, Any] = parse_json(data.cpu().numpy().tobytes())
        return received


class Fsdp(Ddp):
    """Each process holds a part of every parameter and its moments, and gathers a block when it is its turn."""

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        mesh = torch.distributed.device_mesh.init_device_mesh(self.device.type, (self.count,))
        for module in list(model.modules()):
            # the blocks of a transformer, and the stages around them, each gathered in one piece
            if isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and len(module) > 1):
                for block in module:
                    if any(True for _ in block.parameters()):
                        fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _whole(tensor) for name, tensor in tensors.items()}

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        tensor = super().part(tensor, like)
        return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> Tensor:
        return _whole(super().clip(parameters, most))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
