"""The process of `milkweed serve` keeps its memory from others of the same user before it reads a key or a body."""

import ctypes
import sys
from pathlib import Path

import pytest

from milkweed.cli.serving.serve import serve
from milkweed.server.process import http_server
from milkweed.server.process import serve as process

_GET_DUMPABLE, _SET_DUMPABLE = 3, 4


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_nobody_may_read_the_memory_of_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    libc, found = ctypes.CDLL(None), []
    before = libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    monkeypatch.setattr(process, "run_server", lambda *a: found.append(libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0)) or 0)
    monkeypatch.setattr(http_server, "exit_now", lambda code: found.append(code))
    try:
        serve(None, None, repository=str(tmp_path))
    finally:
        libc.prctl(_SET_DUMPABLE, before, 0, 0, 0)
    assert (before, found) == (1, [0, 0])
