"""What is missing is installed by a command that works here: in a checkout, from a wheel, from an index."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from milkweed.kernels import installation
from milkweed.kernels.installation import install_command


def installed(patch: pytest.MonkeyPatch, root: Path, url: str | None) -> None:
    """This milkweed lies at `root`, where pip put it; its record names the address that it came from."""
    patch.setattr(installation, "ROOT", root)
    patch.setattr(installation.shutil, "which", lambda program: str(Path(sys.executable).with_name(program)))
    text = None if url is None else json.dumps({"url": url})
    patch.setattr(installation, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


@pytest.mark.parametrize("away", [False, True])
def test_in_a_checkout_make_does_it(away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, f"file://{tmp_path}")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PWD", "/" if away else str(tmp_path))
    make = f"make -C {tmp_path}" if away else "make"
    assert install_command("onnx,quantize") == f"{make} install-onnx,quantize"
    assert install_command("cpu-kernels") == f"{make} cpu-kernels"
    monkeypatch.setattr(sys, "prefix", "/usr")  # an environment that make knows nothing of
    assert install_command("otel") == f"pip install -e '{tmp_path}[otel]'"
    assert install_command("kernels") == f"{sys.executable} -m milkweed.kernels.native.build"


def test_a_wheel_is_named_by_the_file_or_address_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "a b" / "milkweed-1-py3-none-any.whl"
    installed(monkeypatch, tmp_path, wheel.as_uri())
    assert install_command("torch") == "pip install 'milkweed-1-py3-none-any.whl[torch]'"
    wheel.parent.mkdir()
    wheel.touch()
    assert install_command("torch") == f"pip install '{wheel}[torch]'"
    assert install_command("cpu-kernels") == f"{sys.executable} -m milkweed.kernels.cpu.build"
    installed(monkeypatch, tmp_path, "https://example.org/milkweed.whl")
    assert install_command("torch") == "pip install 'milkweed[torch] @ https://example.org/milkweed.whl'"


def test_what_came_from_an_index_is_named_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, None)
    assert install_command("serve") == "pip install 'milkweed[serve]'"
    monkeypatch.setattr(installation.shutil, "which", lambda program: "/usr/bin/pip")
    assert install_command("serve") == f"{sys.executable} -m pip install 'milkweed[serve]'"
