"""Nothing is told to anybody: ONNX Runtime leaves the user's home empty and calls nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import socket, sys
def connect(*arguments):
    print("called", arguments, flush=True)
    raise OSError("no network")
socket.socket.connect = connect
import torch
from milkweed.models.onnx.file import write_onnx
from milkweed.models.onnx.session import OnnxSession
from pathlib import Path

class Mean(torch.nn.Module):
    def forward(self, images):
        return images.mean((2, 3))

images = torch.randn(2, 3, 4, 4)
write_onnx(Mean(), Path(sys.argv[1]), images)
assert torch.allclose(OnnxSession(Path(sys.argv[1]))(images), images.mean((2, 3)), atol=1e-6)
"""


@pytest.mark.slow
def test_onnx_runtime_leaves_no_trace_at_home_and_calls_nobody(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "mean.onnx")]
    done = subprocess.run(command, env={**environment, "HOME": str(home)}, capture_output=True, text=True)
    assert (done.returncode, "called" in done.stdout) == (0, False), done.stderr
    assert list(home.rglob("*")) == []
