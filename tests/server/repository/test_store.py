"""A repository of bundles: what it holds is served, changes are taken over whole or not at all, the admin API acts."""

import asyncio
import errno
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.store import RepositoryError, newest, scan

from ...support.repositories import Put, break_golden, clients_of, serving


def test_scan_finds_bundles_and_numbers(tmp_path: Path, put: Put) -> None:
    put("plain")
    put("many/1")
    put("many/10", seed=1)
    put("many/9", seed=2)
    (tmp_path / "many" / "latest").mkdir()
    (tmp_path / "many" / "11").mkdir()  # no bundle yet
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "file").write_text("x")
    found = scan(tmp_path)
    assert {name: [each.number for each in versions] for name, versions in found.items()} == {
        "plain": [""],
        "many": ["10", "9", "1"],
    }
    assert [each.number for each in newest(found, 2)["many"]] == ["9", "10"]
    with pytest.raises(RepositoryError, match=r"repository .*/nowhere: No such file"):
        scan(tmp_path / "nowhere")


def test_a_folder_that_may_not_be_read_is_passed_over_and_one_that_cannot_is_there(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a")
    for name in ("lost+found", "stale"):
        (tmp_path / name).mkdir()
    look_at = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if "lost+found" in path.parts[:-1]:
            raise PermissionError(errno.EACCES, "Permission denied")
        if "stale" in path.parts:
            raise OSError(errno.ESTALE, "Stale file handle")
        return look_at(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert {name: [each.stamp for each in versions] == [()] for name, versions in scan(tmp_path).items()} == {
        "a": False,
        "stale": True,
    }


@pytest.mark.parametrize(
    "name",
    [
        *("a\nmilkweed serves evil", "b\x1b[31mred", 'c"} 1', "d\\", "e{}", " f", "g ", "h h", "i\u202e", "j@1"),
        *("k=l", "m,n", "o%2Fp", "q\x01", "r#s", "t?u", "<v>", "'w", "x;y", "-z", "\u2215a", "_a", "a\u0301b"),
        os.fsdecode(b"a\xff"),
    ],
)
def test_a_name_that_no_url_can_carry_is_passed_over_with_a_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (name, "good-1.x_y", "größe"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    assert set(scan(tmp_path)) == set(scan(tmp_path)) == {"good-1.x_y", "größe"}
    [line] = caplog.messages  # and not one at each look
    assert ascii(name) in line
    assert line.isascii()
    assert line.isprintable()


@pytest.mark.parametrize("value", ["1e999", '"\\ud800"', "[" * 900 + "]" * 900], ids=["infinite", "surrogate", "deep"])
async def test_metrics_that_json_cannot_say_fail_their_bundle_alone(tmp_path: Path, put: Put, value: str) -> None:
    put("a")
    async with serving(tmp_path) as app:
        put("b", seed=1)
        config = tmp_path / "b" / "config.json"
        config.write_text(config.read_text().replace('"metrics": {}', f'"metrics": {{"top1": {value}}}'))
        [line] = await app.service.poller.poll()
        assert line.startswith(f"failed b: bundle {tmp_path / 'b'}: config.json: ")
        listed = await app.client.get("/v1/models")
        assert [each["name"] for each in listed.json()["models"]] == ["a"]


async def test_a_new_number_that_fails_leaves_the_old_ones_until_it_is_mended(tmp_path: Path, put: Put) -> None:
    put("a/1")
    put("a/2", seed=1)
    ten = put("a/10", seed=2)
    async with serving(tmp_path, keep_versions=2) as app:
        put("a/11", seed=3)
        config = tmp_path / "a" / "11" / "config.json"
        sound = config.read_text()
        break_golden(tmp_path / "a" / "11")
        shutil.rmtree(tmp_path / "a" / "2")  # what serves goes on, also without its folder
        for _ in range(2):
            await app.service.poller.poll()
            assert app.numbers() == ["10", "2"]
            assert await app.version("a") == ten
        config.write_text(sound)
        [served] = await app.service.poller.poll()
        assert served.startswith("serves a/11 ")
        assert app.numbers() == ["11", "10"]


async def test_all_series_of_a_name_go_with_its_last_version(tmp_path: Path, put: Put) -> None:
    put("a/1")
    put("b", seed=1)
    async with serving(tmp_path) as app:
        for name in "ab":
            assert (await app.ask(name)).status_code == 200
        put("a/2", seed=2)
        put("never", seed=3)
        break_golden(tmp_path / "never")
        assert len(await app.service.poller.poll()) == 2
        await app.service.lifecycle.settled()
        assert (await app.ask("a")).status_code == 200
        text = (await app.client.get("/metrics")).text
        assert 'model="never"' in text
        assert text.count('model="a"') >= text.count('model="b"') > 200
        for name in ("a", "never"):
            shutil.rmtree(tmp_path / name)
        assert await app.service.poller.poll() == ["serves a/2 no more"]
        await app.service.lifecycle.settled()
        assert await app.service.poller.poll() == []  # the look before had seen the one that never served
        text = (await app.client.get("/metrics")).text
        assert 'model="a"' not in text
        assert 'model="never"' not in text
        assert text.count('model="b"') > 200


async def test_the_admin_api_loads_unloads_and_says_what_there_is(tmp_path: Path, put: Put) -> None:
    a1, a2 = put("a/1"), put("a/2", seed=1)
    put("b", seed=2)
    async with serving(tmp_path) as app:
        index = (await app.admin.get("/v1/repository")).json()["models"]
        assert [(each["name"], each["number"], each["serves"]) for each in index] == [
            ("a", "2", True),
            ("a", "1", False),
            ("b", None, True),
        ]
        back = await app.admin.post("/v1/models/a/load", params={"number": "1"})
        assert back.json() == {"name": "a", "number": "1", "version": a1}
        assert await app.version("a") == a1
        assert (await app.admin.post("/v1/models/a/load")).json()["version"] == a2
        gone = await app.admin.post("/v1/models/b/unload")
        assert gone.json()["unloaded"][0]["name"] == "b"
        assert await app.version("b") is None
        assert await app.service.poller.poll() == []  # it stays out until it changes
        assert (await app.admin.post("/v1/models/b/load")).status_code == 200
        for path in ("/v1/models/none/load", "/v1/models/a/load?number=9", "/v1/models/none/unload"):
            answer = await app.admin.post(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_model")
        (tmp_path / "b" / "model.safetensors").write_bytes(b"x")
        failed = await app.admin.post("/v1/models/b/load")
        assert failed.status_code == 422
        assert "model.safetensors" in failed.json()["error"]["message"]
        assert await app.version("b") is not None
        assert (await app.admin.post("/v1/repository/poll")).json() == {"done": []}


async def test_without_a_repository_there_is_nothing_to_admin(tmp_path: Path, put: Put) -> None:
    put("a")
    app = create_app(Settings(), {"a": tmp_path / "a"})
    async with clients_of(app) as asked:
        answer = await asked.admin.get("/v1/repository")
    assert answer.status_code == 404
    assert "--repository DIR" in answer.json()["error"]["message"]


async def test_a_name_served_from_elsewhere_stops_the_start(tmp_path: Path, put: Put) -> None:
    put("repository/a")
    app = create_app(Settings(repository=str(tmp_path / "repository")), {"a": tmp_path / "repository" / "a"})
    async with app.router.lifespan_context(app):
        with pytest.raises(RepositoryError, match="a model called a is served already"):
            await asyncio.wrap_future(app.state.service.prepared)


@pytest.mark.slow
async def test_memory_comes_back_over_many_reloads(tmp_path: Path, put: Put) -> None:
    sizes = {"embed_dim": 256, "depth": 4, "num_heads": 4}  # 13 MB of weights
    put("a", **sizes)
    async with serving(tmp_path) as app:

        async def reload(times: int) -> int:
            for _ in range(times):
                await app.service.poller.load("a")
            await app.service.lifecycle.settled()
            gc.collect()
            return int(psutil.Process().memory_info().rss)

        before = await reload(3)
        after = await reload(6)
        assert after - before < 20 << 20  # six would be 76 MB
