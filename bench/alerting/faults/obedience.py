"""Obedience: makes the milkweed of this process do what levers say, and read a cgroup that stands for its container's.

The server on trial calls `obey` before anything else; nothing of the product knows of it.
"""

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ....loaders.dali_graph import DaliGraph
from ....server import container
from ....server.container import collect_container_memory
from ....server.lanes import Lanes

_HOARD: list[bytearray] = []


def obey(levers: Path, cgroup: Path) -> None:
    """From now on every batch asks the folder of levers what to do."""
    container.collect_container_memory = partial(collect_container_memory, cgroup)
    forward, decode, define = Lanes.run, DaliGraph.run, DaliGraph._defined

    def run_forward(self: Lanes, pixels: Any) -> Any:
        _heed(levers)
        return forward(self, pixels)

    def run_decoder(self: DaliGraph, bodies: Any, regions: Any) -> Any:
        if (levers / "decoder").exists():
            self._pipeline = None
        return decode(self, bodies, regions)

    def defined(self: DaliGraph) -> Any:
        if (levers / "decoder").exists():
            raise RuntimeError("this decoder was told to be lost")
        return define(self)

    Lanes.run, DaliGraph.run, DaliGraph._defined = run_forward, run_decoder, defined  # type: ignore[method-assign]


def _heed(levers: Path) -> None:
    while (levers / "hold").exists():
        time.sleep(0.02)
    _number(levers / "fail", _fail)
    try:
        (levers / "end").unlink()
    except FileNotFoundError:
        pass
    else:
        raise SystemExit("this thread was told to end")
    _number(levers / "slow", time.sleep)
    _number(levers / "lock", lambda count: sum(range(int(count))))  # one step of the interpreter: nothing else runs
    _number(levers / "grow", lambda size: _HOARD.append(bytearray(b"\1") * int(size)))


def _fail(share: float) -> None:
    if random.random() < share:
        raise RuntimeError("this forward was told to fail")


def _number(lever: Path, act: Callable[[float], object]) -> None:
    try:
        number = float(lever.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    act(number)
