"""A signal while a server still imports what it needs ends it at once and cleanly, also where it is process 1."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ...support.waiting import HANG_SECONDS

SLOW_IMPORT = 'print("importing", flush=True); import time; time.sleep(600)\n'

MILKWEED = "import sys; from milkweed.cli import main; sys.exit(main())"

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def may_be_process_1() -> bool:
    """Whether processes of a namespace of their own can be had here."""
    return (
        shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    )


@contextmanager
def importing(folder: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """`milkweed serve` in the middle of its imports."""
    (folder / "fastapi").mkdir()
    (folder / "fastapi" / "__init__.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*before, sys.executable, "-c", MILKWEED, "serve", "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "importing\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("process_1", [False, True])
def test_a_signal_during_the_imports_ends_it(tmp_path: Path, number: signal.Signals, process_1: bool) -> None:
    if process_1 and not may_be_process_1():
        pytest.skip("unshare --pid is not there or not allowed")
    with importing(tmp_path, *(UNSHARE if process_1 else ())) as process:
        server = psutil.Process(process.pid)
        (server.children()[0] if process_1 else server).send_signal(number)
        assert process.wait(HANG_SECONDS) == 0
