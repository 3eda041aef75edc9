"""Two gloo processes with half of each batch come to the weights of one process with all of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milkweed.bench.ports import free_port
from milkweed.models.bundle.safetensors_file import read_tensors
from milkweed.models.training import Processes, TensorSource
from milkweed.models.training.parallel import joined

from ...support.waiting import HANG_SECONDS
from . import two_processes

CPU = torch.device("cpu")


@pytest.mark.slow
def test_two_processes_come_to_the_weights_of_one(tmp_path: Path) -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "", "OMP_NUM_THREADS": "1"}
    port = free_port(1)
    command = [sys.executable, two_processes.__file__, str(tmp_path), str(port), str(port + 1)]
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1))
    running = [
        subprocess.Popen(command, env={**os.environ, **common, **rank}, stderr=subprocess.PIPE) for rank in ranks
    ]
    try:
        said = [process.communicate(timeout=HANG_SECONDS)[1].decode()[-2000:] for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert [process.returncode for process in running] == [0, 0], said
    start, alone = two_processes.start().state_dict(), two_processes.train(Processes(), None).state_dict()
    moved = max(float((alone[name] - start[name]).abs().max()) for name in alone if name in start)
    assert moved > 1e-3
    for kind in ("ddp", "fsdp"):
        for rank in (0, 1):
            found = read_tensors(tmp_path / f"{kind}.{rank}.safetensors").tensors
            assert found.keys() == alone.keys()
            for name, tensor in alone.items():
                torch.testing.assert_close(found[name], tensor, rtol=0, atol=moved / 300, msg=f"{kind} {rank} {name}")


def test_not_started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"parallel ddp: RANK, .* start it with torchrun"), joined("ddp", CPU):
        pass
    with pytest.raises(ValueError, match="parallel 'dp' must be one of ddp, fsdp"), joined("dp", CPU):
        pass
    with joined(None, CPU) as processes:
        assert (processes.rank, processes.count) == (0, 1)


def test_processes_share_each_batch() -> None:
    images = torch.arange(24.0).view(24, 1, 1, 1)
    whole = TensorSource(images, None, 6, seed=3)
    parts = [TensorSource(images, None, 6, seed=3, rank=rank, processes=2) for rank in (0, 1)]
    for epoch in (0, 1):
        batches = zip(whole.batches(epoch, 1), *(part.batches(epoch, 1) for part in parts), strict=True)
        for (all_of_it, _), (first, _), (second, _) in batches:
            assert sorted(all_of_it.flatten().tolist()) == sorted([*first.flatten(), *second.flatten()])
            assert len(first) == len(second) == 3
