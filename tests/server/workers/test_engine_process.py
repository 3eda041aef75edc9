"""The engine's process beside HTTP workers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from milkweed.server.workers import engine_process
from milkweed.server.workers.engine_process import EngineProcess


@pytest.mark.parametrize("draining", [True, False])
def test_models_that_are_warm_only_at_the_end_are_not_said_to_be_served(
    draining: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(engine_process, "say_served", lambda *_: said.append("served"))
    orders = SimpleNamespace(say_ready=lambda: said.append("ready"))
    hub, service = SimpleNamespace(publish=lambda: said.append("published")), SimpleNamespace(draining=draining)
    process = SimpleNamespace(service=service, _hub=hub, _orders=orders, _url="http://x")
    EngineProcess._prepared(cast(EngineProcess, process), None)
    assert said == (["published", "ready"] if draining else ["published", "served", "ready"])
