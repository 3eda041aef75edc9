"""A start passes over bundles that fail: an older version serves, or the other models where settings allow it."""

import asyncio
from pathlib import Path

import pytest

from milkweed.models.errors import BundleError
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app

from ...support.repositories import Put, break_golden, clients_of, open_here, serving


async def test_a_start_passes_over_versions_that_fail(
    tmp_path: Path, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    a2, b = put("a/2"), put("b", seed=1)
    put("a/1", seed=2)
    for number in ("3", "4"):
        put(f"a/{number}", seed=int(number))
        break_golden(tmp_path / "a" / number)
    async with serving(tmp_path) as app:
        assert (await app.version("a"), await app.version("b")) == (a2, b)
        assert app.value("model_load_failures_total", model="a") == 2
        assert app.value("model_load_failures_total", model="b") == 0
        assert "a/4 cannot be served" in caplog.text
        assert await app.service.poller.poll() == []  # as before, until something changes
        five = put("a/5", seed=5)
        assert await app.service.poller.poll() == [f"serves a/5 ({five})"]
        assert app.numbers() == ["5"]


async def test_a_start_keeps_as_many_versions_as_are_sound(tmp_path: Path, put: Put) -> None:
    for number in range(1, 5):
        put(f"a/{number}", seed=number)
    break_golden(tmp_path / "a" / "3")
    async with serving(tmp_path, keep_versions=2) as app:
        assert app.numbers() == ["4", "2"]


async def test_a_name_without_a_sound_version_stops_the_start(tmp_path: Path, put: Put) -> None:
    put("a/1")
    put("a/2", seed=1)
    break_golden(tmp_path / "a" / "1")
    break_golden(tmp_path / "a" / "2")
    with pytest.raises(BundleError, match=r"a/2"):
        async with serving(tmp_path):
            pass


async def test_a_start_with_failures_serves_the_rest_and_names_what_it_lacks(
    tmp_path: Path, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    put("a")
    good = put("b", seed=1)
    break_golden(tmp_path / "a")
    async with serving(tmp_path, start_with_failures=True, aliases={"production": "a", "canary": "b"}) as app:
        assert (await app.client.get("/readyz")).status_code == 200
        assert [await app.version(name) for name in ("a", "b", "canary", "production")] == [None, good, good, None]
        assert (await app.client.get("/v2/models/a/ready")).status_code == 404
        assert (await app.client.get("/v2/models/b/ready")).status_code == 200
        entries = (await app.client.post("/v2/repository/index", json={})).json()
        states = {each["name"]: (each["state"], each["reason"]) for each in entries}
        assert states == {"a": ("UNAVAILABLE", "could not be loaded"), "b": ("READY", "")}
        listed = (await app.admin.get("/v1/repository")).json()["models"]
        errors = {each["name"]: each["error"] for each in listed}
        assert errors["a"].startswith(f"bundle {tmp_path / 'a'}: golden image 0")
        assert errors["b"] is None
        assert app.value("model_load_failures_total", model="a") == 1
        assert "a cannot be served, what is sound goes on: bundle" in caplog.text
        mended = put("a", seed=2)
        assert await app.service.poller.poll() == [f"serves a ({mended})"]
        assert await app.version("production") == mended
        assert not app.service.lifecycle.failures


async def test_a_start_with_failures_alone_is_not_ready_until_one_is_mended(tmp_path: Path, put: Put) -> None:
    put("a")
    break_golden(tmp_path / "a")
    async with serving(tmp_path, start_with_failures=True) as app:
        answer = await app.client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no model could be loaded")
        put("a", seed=2)
        assert len(await app.service.poller.poll()) == 1
        assert (await app.client.get("/readyz")).status_code == 200


async def test_a_bundle_given_by_name_may_fail_at_a_start_with_failures(tmp_path: Path, put: Put) -> None:
    put("a")
    good = put("b", seed=1)
    break_golden(tmp_path / "a")
    bundles = {name: tmp_path / name for name in "ab"}
    app = create_app(Settings(start_with_failures=True, lanes=1), bundles, open_model=open_here)
    async with app.router.lifespan_context(app):
        await asyncio.wrap_future(app.state.service.prepared)
        async with clients_of(app) as asked:
            assert [await asked.version(name) for name in "ab"] == [None, good]
            assert asked.value("model_load_failures_total", model="a") == 1
