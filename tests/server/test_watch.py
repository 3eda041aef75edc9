"""Looks at the repository: a bundle that fails, however it does, is its own failure alone."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from milkweed.server.device import DeviceError

from .test_repository import Put, put, serving

__all__ = ["put"]

pytestmark = pytest.mark.anyio


def crash(bundle: Path) -> None:
    """Well-formed, and no forward of the model takes it: an AssertionError of timm's."""
    config = json.loads((bundle / "config.json").read_text())
    config["preprocess"]["size"] = 64
    (bundle / "config.json").write_text(json.dumps(config))


async def test_a_bundle_that_crashes_fails_alone_and_once(
    tmp_path: Path, put: Put, kit: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    first = put("b")
    async with serving(tmp_path) as app:
        put("a", seed=1)
        crash(tmp_path / "a")
        changed, c = put("b", seed=2), put("c", seed=3)
        done = await app.service.watch.look()
        assert done == [
            "failed a: model a cannot be opened: an unexpected error, the log has it",
            f"serves b ({changed})",
            f"serves c ({c})",
        ]
        assert first != changed
        assert app.value("model_load_failures_total", model="a") == 1
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [AssertionError]
        assert await app.service.watch.look() == []
        answer = await app.admin.post("/v1/models/a/load")
        assert (answer.status_code, answer.json()["error"]) == (
            422,
            {
                "code": "bad_bundle",
                "message": "model a cannot be opened: an unexpected error, the log has it",
            },
        )
        mended = put("a", seed=4)
        assert await app.service.watch.look() == [f"serves a ({mended})"]
        assert await app.version(kit, "a") == mended


async def test_a_start_passes_over_versions_that_crash(tmp_path: Path, put: Put, kit: ModuleType) -> None:
    one, b = put("a/1"), put("b", seed=1)
    put("a/2", seed=2)
    crash(tmp_path / "a" / "2")
    async with serving(tmp_path) as app:
        assert (await app.version(kit, "a"), await app.version(kit, "b")) == (one, b)
        assert app.value("model_load_failures_total", model="a") == 1
        assert await app.service.watch.look() == []


async def test_a_name_of_which_all_crash_stops_the_start_with_a_line(tmp_path: Path, put: Put) -> None:
    put("a")
    put("b", seed=1)
    crash(tmp_path / "a")
    with pytest.raises(DeviceError, match="^model a cannot be opened: an unexpected error, the log has it$"):
        async with serving(tmp_path):
            pass
