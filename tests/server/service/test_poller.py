"""Looks at the repository: a bundle that fails is its own failure alone, and a moment's state is not believed."""

import asyncio
import json
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from milkweed.models.errors import BundleError
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.store import RepositoryError, scan
from milkweed.server.service import poller

from ...support.repositories import Put, break_golden, serving
from ...support.server_parts import HeldModel, until
from ...support.waiting import HANG_SECONDS


def crash(bundle: Path) -> None:
    """Make it one that is well-formed, and that no forward takes: an AssertionError of timm's."""
    config = json.loads((bundle / "config.json").read_text())
    config["preprocess"]["size"] = 64
    (bundle / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "words", "logged"),
    [
        (crash, "model a cannot be opened: an unexpected error, the log has it", [AssertionError]),
        (break_golden, "golden image 0", []),
    ],
)
@pytest.mark.slow_beyond(1)
async def test_a_bundle_that_fails_leaves_the_old_one_and_is_not_tried_again_until_it_changes(
    tmp_path: Path,
    put: Put,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    words: str,
    logged: list[type[Exception]],
) -> None:
    first, _ = put("a"), put("b", seed=9)
    async with serving(tmp_path) as app:
        put("a", seed=1)
        damage(tmp_path / "a")
        changed, c = put("b", seed=2), put("c", seed=3)
        failed, *done = await app.service.poller.poll()
        assert failed.startswith("failed a: ")
        assert words in failed
        assert done == [f"serves b ({changed})", f"serves c ({c})"]
        assert await app.version("a") == first
        assert app.value("model_load_failures_total", model="a") == 1
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == logged
        assert await app.service.poller.poll() == []
        answer = await app.admin.post("/v1/models/a/load")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_bundle")
        assert words in answer.json()["error"]["message"]
        mended = put("a", seed=4)
        assert await app.service.poller.poll() == [f"serves a ({mended})"]
        assert await app.version("a") == mended


@pytest.mark.parametrize(("keep", "left"), [(1, ["2"]), (2, ["2", "1"])])
async def test_without_its_newest_version_a_model_serves_the_one_before(
    tmp_path: Path, put: Put, keep: int, left: list[str]
) -> None:
    versions = [put(f"a/{number}", seed=number) for number in (1, 2, 3)]
    async with serving(tmp_path, keep_versions=keep) as app:
        shutil.rmtree(tmp_path / "a" / "3")
        brought = left[-1]
        assert await app.service.poller.poll() == [
            f"serves a/{brought} ({versions[int(brought) - 1]})",
            "serves a/3 no more",
        ]
        assert app.numbers() == left
        assert await app.version("a") == versions[1]
        assert await app.service.poller.poll() == []


async def test_numbers_in_the_place_of_a_bundle_and_back(tmp_path: Path, put: Put) -> None:
    put("a")
    async with serving(tmp_path) as app:
        shutil.rmtree(tmp_path / "a")
        one = put("a/1", seed=1)
        assert await app.service.poller.poll() == [f"serves a/1 ({one})"]
        assert await app.version("a") == one
        shutil.rmtree(tmp_path / "a")
        plain = put("a", seed=2)
        assert await app.service.poller.poll() == [f"serves a ({plain})", "serves a/1 no more"]
        assert await app.version("a") == plain


async def test_a_version_that_was_loaded_by_hand_stays_until_a_newer_one_comes(tmp_path: Path, put: Put) -> None:
    one, _ = put("a/1"), put("a/2", seed=1)
    async with serving(tmp_path) as app:
        assert (await app.admin.post("/v1/models/a/load", params={"number": "1"})).status_code == 200
        assert await app.service.poller.poll() == []
        assert await app.version("a") == one
        three = put("a/3", seed=2)
        assert await app.service.poller.poll() == [f"serves a/3 ({three})"]
        assert await app.version("a") == three


async def test_a_version_that_an_alias_let_go_can_serve_again(tmp_path: Path, put: Put) -> None:
    one, _, _ = put("a/1"), put("a/2", seed=1), put("b", seed=2)
    async with serving(tmp_path, aliases={"old": "a@1"}) as app:
        assert (await app.admin.delete("/v1/aliases/old")).status_code == 200
        assert (await app.admin.post("/v1/models/b/load")).status_code == 200
        assert app.numbers() == ["2"]
        shutil.rmtree(tmp_path / "a" / "2")
        assert await app.service.poller.poll() == [f"serves a/1 ({one})", "serves a/2 no more"]
        assert await app.version("a") == one


async def test_what_is_gone_for_a_moment_serves_on(tmp_path: Path, put: Put) -> None:
    put("a/1")
    two, _ = put("a/2", seed=1), put("b", seed=2)
    async with serving(tmp_path) as app:
        look = app.service.poller.poll
        for place in ("a/2", "a", "b"):
            (tmp_path / place).rename(tmp_path / ".aside")
            assert await look(twice=True) == []
            assert len(app.service.models) == 2
            assert await app.version("a") == two
            (tmp_path / ".aside").rename(tmp_path / place)
            assert await look(twice=True) == []
        for name in "ab":
            shutil.rmtree(tmp_path / name)
            put("c", seed=3)
            assert not [line for line in await look(twice=True) if "no more" in line]
            assert f"serves {name}{'/2' if name == 'a' else ''} no more" in await look(twice=True)
        assert list(app.service.models) == ["c"]


async def test_a_repository_that_is_empty_is_not_believed(tmp_path: Path, put: Put) -> None:
    version = put("models/a")
    async with serving(tmp_path / "models") as app:
        (tmp_path / "models" / "a").rename(tmp_path / "a")
        for _ in range(3):
            with pytest.raises(RepositoryError, match="no bundle is left in it, 1 serve"):
                await app.service.poller.poll(twice=True)
        answer = await app.admin.post("/v1/repository/poll")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "bad_bundle")
        assert await app.version("a") == version
        (tmp_path / "a").rename(tmp_path / "models" / "a")
        assert await app.service.poller.poll() == []
        assert (await app.admin.post("/v1/models/a/unload")).status_code == 200
        shutil.rmtree(tmp_path / "models" / "a")
        assert await app.service.poller.poll() == []  # nothing serves that could be lost


async def test_a_bundle_that_cannot_be_looked_at_is_not_gone(tmp_path: Path, put: Put) -> None:
    version, _ = put("a"), put("b", seed=1)
    async with serving(tmp_path) as app:
        config = tmp_path / "a" / "config.json"
        config.rename(tmp_path / "aside")
        config.symlink_to("config.json")  # too many levels of links: as a handle that went stale, no "no such file"
        [line] = await app.service.poller.poll()
        assert line.startswith("failed a: ")
        assert await app.service.poller.poll() == []
        assert await app.version("a") == version
        config.unlink()
        (tmp_path / "aside").rename(config)
        assert await app.service.poller.poll() == []


async def test_a_bundle_that_is_being_written_is_not_opened_half(tmp_path: Path, put: Put) -> None:
    one, two = put("a/1"), put(".made", seed=1)
    made, place = tmp_path / ".made", tmp_path / "a" / "2"
    async with serving(tmp_path) as app:
        place.mkdir()
        for name in ("config.json", "labels.json"):
            shutil.copy(made / name, place)
            assert await app.service.poller.poll(twice=True) == []
        weights = (made / "model.safetensors").read_bytes()
        for size in (0, 1000, len(weights)):
            (place / "model.safetensors").write_bytes(weights[:size])
            assert await app.service.poller.poll(twice=True) == []
        assert await app.version("a") == one
        assert await app.service.poller.poll(twice=True) == [f"serves a/2 ({two})"]
        assert await app.version("a") == two
        assert app.value("model_load_failures_total", model="a") == 0


async def test_half_a_bundle_is_tried_again_when_the_rest_is_there(tmp_path: Path, put: Put) -> None:
    put("a/1")
    two = put(".made", seed=1)
    async with serving(tmp_path) as app:
        shutil.copytree(tmp_path / ".made", tmp_path / "a" / "2", ignore=lambda *_: ["model.safetensors"])
        [line] = await app.service.poller.poll()
        assert line.endswith("model.safetensors: no such file")
        assert await app.service.poller.poll() == []
        shutil.copy(tmp_path / ".made" / "model.safetensors", tmp_path / "a" / "2")  # the config is as it was
        assert await app.service.poller.poll() == [f"serves a/2 ({two})"]


async def test_time_passes_and_what_is_new_serves(tmp_path: Path, put: Put) -> None:
    put("a/1")
    async with serving(tmp_path, repository_seconds=0.01) as app:
        put("a/2", seed=1)
        await until(lambda: app.numbers() == ["2"])


async def test_nothing_is_looked_at_while_the_first_models_load(tmp_path: Path, put: Put) -> None:
    put("a")
    gate = threading.Event()

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        assert gate.wait(HANG_SECONDS)
        raise BundleError("not sound")

    settings = Settings(repository=str(tmp_path), repository_seconds=0.01)
    app = create_app(settings, {}, open_model=open_held)
    poll = app.state.service.poller.poll = AsyncMock()
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0.1)  # a wait for what must not happen
        gate.set()
        with pytest.raises(BundleError, match="not sound"):
            await asyncio.wrap_future(app.state.service.prepared)
        await asyncio.sleep(0.1)
    poll.assert_not_called()


async def test_a_version_that_failed_is_not_held_in_memory_while_the_one_before_is_opened(
    tmp_path: Path, put: Put
) -> None:
    put("a/1")
    put("a/2", seed=1)
    big: list[weakref.ref[Any]] = []
    left: list[Any] = []

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        if path.name == "1":
            left.extend(each() for each in big)
            raise BundleError("a/1 is not sound")
        model = HeldModel()
        big.append(weakref.ref(model))
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            raise BundleError("a/2 is not sound") from error

    app = create_app(Settings(repository=str(tmp_path)), {}, open_model=open_held)
    async with app.router.lifespan_context(app):
        with pytest.raises(BundleError, match="a/2 is not sound"):
            await asyncio.wrap_future(app.state.service.prepared)
    assert left == [None]


async def test_a_mount_that_hangs_keeps_one_thread_and_nobody_else(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a")
    hanging, gate = threading.Semaphore(0), threading.Event()

    def hang(root: Path) -> Any:
        hanging.release()
        assert gate.wait(HANG_SECONDS)
        return scan(root)

    async with serving(tmp_path) as app:
        monkeypatch.setattr(poller, "scan", hang)
        asked = [asyncio.create_task(app.admin.get("/v1/repository")) for _ in range(40)]
        assert await asyncio.to_thread(hanging.acquire, timeout=HANG_SECONDS)
        assert (await app.client.get("/metrics")).status_code == 200
        assert [thread.name for thread in threading.enumerate()].count("milkweed-scan") == 1
        assert not any(each.done() for each in asked)
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
