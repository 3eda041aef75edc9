"""Aliases: names that stand for a model or a version of it, given at start or changed while requests run."""

import asyncio
import shutil
from pathlib import Path

import httpx
import pytest

from milkweed.server.config.aliases import AliasError, AliasTarget
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import SettingsError, load_settings
from milkweed.server.process.service_app import create_app

from ...support.repositories import App, Put, clients_of, serving
from ...support.server_parts import encoded, until


async def point(app: App, name: str, model: str, version: str | None = None) -> httpx.Response:
    return await app.admin.put(f"/v1/aliases/{name}", json={"model": model, "version": version})


def refused(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    for word in words:
        assert word in error["message"]


def test_aliases_read_the_same_from_every_source_and_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"production": "deit@3", "canary": "deit"}
    assert load_settings({"aliases": "production=deit@3, canary=deit"}).aliases == expected
    file = tmp_path / "milkweed.toml"
    file.write_text('[aliases]\nproduction = "deit@3"\ncanary = "deit"\n')
    assert load_settings({}, file).aliases == expected
    for text in ('{"production": "deit@3", "canary": "deit"}', "production=deit@3,canary=deit"):
        monkeypatch.setenv("MILKWEED_ALIASES", text)
        assert load_settings().aliases == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("production", "'production' is not key=value"),
        ("a=deit,a=vit", "a is given twice"),
        ("a b=deit", "alias 'a b': must be"),
        ("a=@3", "a stands for '@3'"),
        ("a=deit@", "a stands for 'deit@'"),
        ('{"a": 3}', "a stands for 3"),
        ('{"a"', "not JSON"),
    ],
)
def test_an_invalid_alias_setting_is_refused_in_one_line(text: str, word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"aliases": text})
    assert str(caught.value).startswith("--aliases = ")
    assert word in str(caught.value)
    assert len(caught.value.lines) == 1


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"deit": "vit"}, "alias deit -> vit would hide the model deit"),
        ({"production": "none@1"}, "alias production -> none@1: no model 'none'"),
        ({"production": "deit@9"}, "alias production -> deit@9: no version '9' of deit"),
        ({"production": "canary", "canary": "deit"}, "alias production -> canary: no model 'canary'"),
    ],
)
async def test_an_alias_that_fits_no_model_stops_the_start(
    tmp_path: Path, put: Put, aliases: dict[str, str], words: str
) -> None:
    put("deit/1")
    put("vit", seed=1)
    with pytest.raises(AliasError) as caught:
        async with serving(tmp_path, aliases=aliases):
            raise AssertionError("it started")
    assert words in str(caught.value)


async def test_an_alias_answers_as_its_target_in_every_protocol(tmp_path: Path, put: Put) -> None:
    versions = {str(number): put(f"deit/{number}", seed=number) for number in (1, 2, 3)}
    aliases = {"production": "deit@1", "canary": f"deit@{versions['3']}", "latest": "deit"}
    async with serving(tmp_path, aliases=aliases) as app:
        expected = {"production": versions["1"], "canary": versions["3"], "latest": versions["3"]}
        for alias, version in expected.items():
            body = (await app.ask(alias)).json()
            assert (body["model"], body["version"]) == ("deit", version)
            infer = await app.client.post(
                f"/v2/models/{alias}/infer",
                content=encoded("JPEG", size=(40, 40)),
                headers={"inference-header-content-length": "0"},
            )
            assert infer.status_code == 200
            number = next(number for number, each in versions.items() if each == version)
            assert f'"model_name": "deit", "model_version": "{number}"'.encode() in infer.content
            assert (await app.client.get(f"/v2/models/{alias}")).json()["name"] == "deit"
            assert (await app.client.get(f"/v2/models/{alias}/ready")).json()["ready"] is True
        # The pinned version serves beside the newest one, and is asked for by number too.
        assert await app.version("deit", **{"X-Model-Version": "1"}) == versions["1"]
        refused(await app.ask("deit", **{"X-Model-Version": "2"}), 404, "unknown_model")
        refused(await app.ask("other"), 404, "unknown_model", "deit, production, canary, latest")
        listed = (await app.client.get("/v1/models")).json()["aliases"]
        assert listed == [
            {"name": "production", "model": "deit", "version": "1"},
            {"name": "canary", "model": "deit", "version": versions["3"]},
            {"name": "latest", "model": "deit", "version": None},
        ]
        assert (await app.admin.get("/v1/aliases")).json() == {"aliases": listed}


async def test_a_request_for_an_alias_and_another_version_is_refused(tmp_path: Path, put: Put) -> None:
    one, two = put("deit/1"), put("deit/2", seed=1)
    async with serving(tmp_path, keep_versions=2, aliases={"production": "deit@1", "latest": "deit"}) as app:
        for said in ("1", one):
            assert await app.version("production", **{"X-Model-Version": said}) == one
        for said in ("2", two, "9"):
            answer = await app.ask("production", **{"X-Model-Version": said})
            refused(answer, 400, "bad_request", "production stands for deit@1", said)
            answer = await app.client.get(f"/v2/models/production/versions/{said}")
            assert answer.status_code == 400
        assert await app.version("latest", **{"X-Model-Version": "1"}) == one


async def test_the_admin_api_sets_moves_and_deletes_aliases(tmp_path: Path, put: Put) -> None:
    one, two = put("deit/1"), put("deit/2", seed=1)
    async with serving(tmp_path, keep_versions=2) as app:
        refused(await app.ask("production"), 404, "unknown_model")
        answer = await point(app, "production", "deit", "1")
        assert answer.json() == {"name": "production", "model": "deit", "version": "1", "before": None}
        assert await app.version("production") == one
        assert (await point(app, "production", "deit", "2")).json()["before"] == "deit@1"
        assert await app.version("production") == two
        refused(
            await point(app, "deit", "deit", "1"), 409, "conflict", "alias deit -> deit@1 would hide the model deit"
        )
        refused(await point(app, "a b", "deit"), 400, "bad_request", "'a b'")
        refused(await point(app, "x", "none"), 404, "unknown_model", "none", "deit")
        refused(await point(app, "x", "production"), 404, "unknown_model", "production")
        refused(await point(app, "x", "deit", "7"), 404, "unknown_model", "x -> deit@7")
        for body in (b"", b"[]", b'{"version": "1"}', b'{"model": ""}', b'{"model": "deit", "vers": "1"}'):
            refused(await app.admin.put("/v1/aliases/x", content=body), 400, "bad_request", '{"model": "NAME"')
        assert await app.version("production") == two
        assert (await app.admin.delete("/v1/aliases/production")).json() == {
            "deleted": "production",
            "before": "deit@2",
        }
        refused(await app.admin.delete("/v1/aliases/production"), 404, "unknown_model", "'production'")
        refused(await app.ask("production"), 404, "unknown_model")
        numbered = await app.admin.put("/v1/aliases/x", json={"model": "deit", "version": 2})
        assert numbered.json()["version"] == "2"


async def test_nothing_leaves_an_alias_dangling(tmp_path: Path, put: Put) -> None:
    one = put("deit/1")
    put("deit/2", seed=1)
    vit = put("vit", seed=2)
    async with serving(tmp_path, aliases={"production": "deit@1", "other": "vit", "hash": f"vit@{vit}"}) as app:
        answer = await app.admin.post("/v1/models/deit/unload", params={"version": "1"})
        refused(answer, 409, "conflict", "alias production stands for deit@1")
        refused(await app.admin.post("/v1/models/vit/unload"), 409, "conflict", "alias other stands for vit")
        # A version that came does not push out the pinned one; one that is gone from the folder stays as well.
        three = put("deit/3", seed=3)
        assert await app.service.poller.poll() == [f"serves deit/3 ({three})"]
        assert await app.version("deit") == three
        assert await app.version("production") == one
        shutil.rmtree(tmp_path / "deit" / "1")
        [line] = await app.service.poller.poll()
        assert line.startswith("serves deit/1 on: alias production stands for deit@1")
        assert await app.service.poller.poll() == []  # said once
        # Another bundle in place of the one whose hash an alias names is refused, and what serves goes on.
        put("vit", seed=4)
        [line] = await app.service.poller.poll()
        assert line.startswith("failed vit: alias hash stands for")
        assert await app.version("vit") == vit
        # A new model may not have an alias's name.
        put("production", seed=5)
        [line] = await app.service.poller.poll()
        assert line.startswith("failed production: model production: an alias has this name")
        assert await app.version("production") == one

        # Pointed elsewhere, what it held is let go.
        def ready(version: str) -> float | None:
            labels = {"model": "deit", "version": version}
            return app.service.metrics.registry.get_sample_value("milkweed_model_ready", labels)

        assert ready(one) == 1
        assert (await point(app, "production", "deit")).status_code == 200
        await app.service.lifecycle.settled()
        assert (ready(one), ready(three)) == (None, 1)
        refused(await app.ask("deit", **{"X-Model-Version": "1"}), 404, "unknown_model")


async def test_aliases_need_no_repository(tmp_path: Path, put: Put) -> None:
    version = put("deit")
    app = create_app(Settings(aliases={"production": f"deit@{version}"}, lanes=1), {"deit": tmp_path / "deit"})
    async with app.router.lifespan_context(app), clients_of(app) as both:
        infer = await both.client.get("/v2/models/production")
        assert infer.status_code in (200, 503)  # 503 while it loads, never unknown
        await asyncio.wrap_future(app.state.service.prepared)
        assert await both.version("production") == version
        assert (await point(both, "canary", "deit")).status_code == 200
        assert await both.version("canary") == version


async def test_moving_an_alias_under_load_loses_no_request_and_mixes_no_answers(tmp_path: Path, put: Put) -> None:
    versions = [put("deit/1"), put("deit/2", seed=1)]
    async with serving(tmp_path, keep_versions=2, aliases={"production": "deit@1"}) as app:
        alone = {
            version: (await app.ask("deit", **{"X-Model-Version": version})).json()["results"] for version in versions
        }
        assert alone[versions[0]] != alone[versions[1]]
        answers: list[httpx.Response] = []
        going = True

        async def client() -> None:
            while going:
                answers.append(await app.ask("production"))

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for turn in range(16):
            assert (await point(app, "production", "deit", str(turn % 2 + 1))).status_code == 200
            seen = len(answers) + 4  # each client has begun anew since
            await until(lambda seen=seen: len(answers) >= seen)
        going = False
        await asyncio.gather(*clients)
        assert {answer.status_code for answer in answers} == {200}
        bodies = [answer.json() for answer in answers]
        assert all(body["results"] == alone[body["version"]] for body in bodies)
        counts = [sum(body["version"] == version for body in bodies) for version in versions]
        assert min(counts) >= 8, counts


def test_a_target_prints_as_it_was_parsed() -> None:
    for text in ("deit", "deit@3", "a.b_c@0f0f"):
        assert str(AliasTarget.parse(text)) == text
