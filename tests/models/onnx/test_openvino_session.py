"""OpenVINO: it sends nothing to anybody, its cache is never trusted with an answer, int8 graphs run as they are."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.models import export_bundle
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.models.errors import ExportError
from milkweed.models.onnx import openvino_session
from milkweed.models.onnx.openvino_session import OpenVinoSession
from milkweed.models.onnx.session import OnnxSession

from ...support.waiting import HANG_SECONDS

WATCHED = """
import json, sys, threading
from pathlib import Path
import torch
calls = []
names = {"socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request", "subprocess.Popen"}
sys.addaudithook(lambda event, arguments: calls.append(event) if event in names else None)
from milkweed.models.onnx.openvino_session import OpenVinoSession
session = OpenVinoSession(Path(sys.argv[1]), streams=2, batch=1)
logits = session(torch.zeros(1, 3, 16, 16))
import nncf
sent = nncf.telemetry.telemetry.send_event("x", "y", "z")
told = [name for name, module in sys.modules.items() if name.startswith("openvino_telemetry") and module is not None]
threads = [thread.name for thread in threading.enumerate()]
print(json.dumps({"calls": calls, "told": told, "threads": threads, "classes": len(logits[0])}))
"""


SIGNALLED = """
import faulthandler, signal, sys, threading
from pathlib import Path
faulthandler.enable()
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
from milkweed.models.onnx.openvino_session import OpenVinoSession
sessions = [OpenVinoSession(Path(sys.argv[1]), batch=1)]
thread = threading.Thread(target=sessions.clear)
thread.start()
thread.join()
signal.raise_signal(signal.SIGUSR1)
"""


@pytest.fixture(scope="module")
def exported(colour_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "colours.onnx"
    export_bundle(colour_bundle, file)
    return file


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_nothing_is_sent_and_nothing_written_into_the_home_folder(exported: Path, tmp_path: Path) -> None:
    """In a process of its own, as a server starts: none of the variables by which a CI is known."""
    known = {name: value for name, value in os.environ.items() if name not in ("CI", "TF_BUILD", "JENKINS_URL")}
    command = [sys.executable, "-c", WATCHED, str(exported)]
    environment = {**known, "HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert not done.returncode, done.stderr
    said = json.loads(done.stdout)
    assert said == {"calls": [], "told": [], "threads": ["MainThread"], "classes": 3}
    assert not list(tmp_path.iterdir())


def test_a_signal_comes_after_a_session_has_gone(exported: Path) -> None:
    """The session goes in another thread than it came in, as models that a server replaces do."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(exported)], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_several_threads_at_once_get_their_own_answers(exported: Path) -> None:
    session = OpenVinoSession(exported, streams=2, batch=1)
    images = pixels(40)
    expected = OnnxSession(exported)(images)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda image: session(image[None])[0], images))
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-4, rtol=1e-4)


def test_any_batch_where_none_is_told(exported: Path) -> None:
    session, images = OpenVinoSession(exported), pixels(5)
    expected = OnnxSession(exported)(images)
    for count in (1, 5, 2):
        torch.testing.assert_close(session(images[:count]), expected[:count], atol=1e-4, rtol=1e-4)


def test_a_cached_model_answers_to_the_bit(exported: Path, tmp_path: Path) -> None:
    cache, images = tmp_path / "new" / "cache", pixels(1)
    answers = [OpenVinoSession(exported, batch=1, cache=each)(images) for each in (None, cache, cache)]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    [compiled] = cache.rglob("*.blob")
    assert compiled.parent.stat().st_mode & 0o077 == 0
    compiled.chmod(0o600)
    compiled.write_bytes(compiled.read_bytes()[: compiled.stat().st_size // 2])  # cut short by a full disk
    assert torch.equal(answers[0], OpenVinoSession(exported, batch=1, cache=cache)(images))


def test_the_cache_does_not_grow_without_end(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "CACHED_MODELS", 2)
    for batch in (1, 2, 3, 4):
        OpenVinoSession(exported, batch=batch, cache=tmp_path)
    assert len(list(tmp_path.rglob("*.blob"))) == 2


def test_a_cache_that_cannot_be_made_is_done_without(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    session = OpenVinoSession(exported, batch=1, cache=tmp_path / "file" / "cache")
    torch.testing.assert_close(session(pixels(1)), OnnxSession(exported)(pixels(1)), atol=1e-4, rtol=1e-4)


def test_a_cache_that_can_neither_be_read_nor_written_is_done_without(exported: Path, tmp_path: Path) -> None:
    """Folders stand where its files would be: permissions do not stop root."""
    OpenVinoSession(exported, batch=1, cache=tmp_path / "whole")
    blobs = [blob.relative_to(tmp_path / "whole") for blob in (tmp_path / "whole").rglob("*.blob")]
    assert blobs
    for blob in blobs:
        (tmp_path / "blocked" / blob).mkdir(parents=True)
    session = OpenVinoSession(exported, batch=1, cache=tmp_path / "blocked")
    torch.testing.assert_close(session(pixels(1)), OnnxSession(exported)(pixels(1)), atol=1e-4, rtol=1e-4)
    assert all(each.is_dir() for each in (tmp_path / "blocked").rglob("*"))


def test_a_model_that_was_compiled_for_another_number_type_is_not_taken_from_the_cache(
    exported: Path, tmp_path: Path
) -> None:
    """OpenVINO would take it, and on a CPU with AMX answer wrongly."""
    images, types = pixels(1), ("float32", "bfloat16")
    answers = [OpenVinoSession(exported, batch=1, dtype=dtype, cache=tmp_path)(images) for dtype in types]
    assert len(list(tmp_path.rglob("*.blob"))) == 2
    torch.testing.assert_close(answers[0], answers[1], atol=0.2, rtol=0.05)
    torch.testing.assert_close(answers[1], OpenVinoSession(exported, batch=1, dtype=types[1])(images), rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 0.05), ("bfloat16", 0.2)])
def test_a_quantised_graph_runs_and_answers_the_same_in_any_company(
    dtype: str, limit: float, exported: Path, colour_graph: OnnxGraph, tmp_path: Path
) -> None:
    file, images = tmp_path / "int8.onnx", pixels(8)
    file.write_bytes(colour_graph.data)
    exact = OnnxSession(exported)(images)
    reference = OnnxSession(file)(images)
    session = OpenVinoSession(file, batch=8, dtype=dtype)
    found = session(images)
    assert not torch.equal(found, exact)
    assert float((found - reference).abs().max() / reference.abs().max()) < limit
    for shift in range(8):
        assert torch.equal(session(images.roll(shift, 0)).roll(-shift, 0), found)
    others = torch.full_like(images, 37.0)
    others[5] = images[0]
    assert torch.equal(session(others)[5], found[0])


def test_a_file_that_is_no_graph_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"^OpenVINO cannot load the model: .+$") as caught:
        OpenVinoSession(tmp_path / "x.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(ExportError, match=r"^OpenVINO cannot load the model: "):
        OpenVinoSession(tmp_path / "none.onnx")


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match=r"^OpenVINO is missing: .*openvino"):
        OpenVinoSession(tmp_path / "x.onnx")
