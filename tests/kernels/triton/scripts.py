"""Runs scripts of cases, each in a process of its own: triton reads TRITON_INTERPRET when a kernel is defined."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def printed(script: Path, *arguments: str, **environment: str) -> str:
    """What a script prints."""
    pytest.importorskip("triton", reason="triton is not installed")
    command = [sys.executable, "-W", "ignore", script, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout
