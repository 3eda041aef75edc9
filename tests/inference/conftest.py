"""An exported model that is made once."""

from pathlib import Path

import pytest

from milkweed.inference import graph
from milkweed.models import export_bundle

from ..support.once import once


@pytest.fixture(scope="session")
def exported(colour_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = "colours.onnx"
    return once(tmp_path_factory, "exported", lambda made: export_bundle(colour_bundle, made / name)) / name


@pytest.fixture
def at_once(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export is there already; the process that makes it is tested by itself."""

    def given(bundle: Path, version: str, file: Path) -> int:
        file.write_bytes(exported.read_bytes())
        return 12345

    monkeypatch.setattr(graph, "export", given)
