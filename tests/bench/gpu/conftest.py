"""Processes of the GPU benchmark with planted sections and faults: Python imports `sitecustomize` before all else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Plant = Callable[[str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Let every process that the test begins run this code first."""
    folder = tmp_path / "planted"

    def write(code: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(code)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    # Compiled code of another plant, written within the same second and of the same length, would pass for this one's.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("MILKWEED_QUARANTINE", raising=False)
    return write
