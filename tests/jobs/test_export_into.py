"""`export --into` gives a bundle that was made for our CPU kernels the program that the search would have written."""

import shutil
from pathlib import Path

import pytest

from milkweed import models
from milkweed.jobs.export_into import export_into
from milkweed.models import load_bundle, save_bundle
from milkweed.models.bundle.program_record import OPERATORS, read_activations
from milkweed.models.errors import ExportError
from milkweed.models.programs.stored import StoredProgram

DEMO = Path(models.__file__).parent / "demo"


@pytest.mark.slow
def test_a_program_is_added_to_a_bundle_that_has_none(tmp_path: Path) -> None:
    model, config = load_bundle(DEMO)
    assert config.program is not None
    made = StoredProgram(model, config.storage, read_activations(DEMO))
    older = tmp_path / "older"
    save_bundle(older, model, config, storage=config.storage, program=config.program, activations=made.tensors)
    assert not (older / OPERATORS).exists()
    saved = export_into(older)
    assert (older / OPERATORS).read_bytes() == (DEMO / OPERATORS).read_bytes()
    assert saved.program is not None
    assert saved.program.counts == config.program.counts
    assert saved.files["model.safetensors"] == config.files["model.safetensors"]


def test_one_that_has_it_keeps_it_unless_told_otherwise(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "demo")
    with pytest.raises(ExportError, match=r"holds program\.safetensors already; --force replaces it"):
        export_into(tmp_path / "demo")
    assert OPERATORS in export_into(tmp_path / "demo", overwrite=True).files
