"""Limits of one model: how they are spelled, what they refuse, and that its flood is its own trouble."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

from milkweed.cli.serving.config import toml_value
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import SettingsError, load_settings

from ...support.server_parts import Start, check_error, encoded, entered, until

LIMITS = {"deit": {"max_queue_images": 64, "top_k": 1}, "v1.vit": {"timeout_ms": 500}}


def test_model_limits_read_the_same_from_every_source_and_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "milkweed.toml"
    file.write_text(
        '[model_limits.deit]\nmax_queue_images = 64\ntop_k = 1\n[model_limits."v1.vit"]\ntimeout_ms = 500\n'
    )
    found = [load_settings({}, file)]
    text = "deit.max_queue_images=64, deit.top_k=1,v1.vit.timeout_ms=500"
    found.append(load_settings({"model_limits": text}))
    for value in (text, '{"deit": {"max_queue_images": 64, "top_k": 1}, "v1.vit": {"timeout_ms": 500}}'):
        monkeypatch.setenv("MILKWEED_MODEL_LIMITS", value)
        found.append(load_settings())
    monkeypatch.delenv("MILKWEED_MODEL_LIMITS")
    assert [each.model_dump()["model_limits"] for each in found] == [LIMITS] * 4
    # What `config show --toml` prints is a file again.
    file.write_text("\n".join(f"{name} = {toml_value(value)}" for name, value in found[0].model_dump().items()))
    assert load_settings({}, file) == found[0]


def test_settings_of_a_model_differ_only_in_its_limits() -> None:
    settings = Settings(model_limits=LIMITS, top_k=3)
    assert settings.of("other") is settings
    deit, vit = settings.of("deit"), settings.of("v1.vit")
    assert (deit.top_k, deit.max_queue_images, deit.timeout_ms) == (1, 64, settings.timeout_ms)
    assert deit.max_images_per_request == 64  # what its queue can take
    assert (vit.top_k, vit.timeout_ms, vit.max_images_per_request) == (3, 500, 256)
    changed = {name for name in Settings.model_fields if getattr(deit, name) != getattr(settings, name)}
    assert changed == {"top_k", "max_queue_images", "max_images_per_request"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deit.top_k=0", "--model-limits.deit.top_k = '0': input should be greater than or equal to 1"),
        ("deit.topk=1", "--model-limits.deit.topk = '1': extra inputs are not permitted"),
        ("top_k=1", "'top_k' is not name.key"),
        ("deit.max_queue_images=1025", "model_limits.deit.max_queue_images = 1025 is above max_queue_images = 1024"),
        ("deit.timeout_ms=300001", "model_limits.deit.timeout_ms = 300001 is above max_timeout_ms = 300000"),
        (
            "deit.max_queue_images=9,deit.max_images_per_request=10",
            "model_limits.deit.max_images_per_request = 10 is above its max_queue_images = 9",
        ),
    ],
)
def test_an_invalid_limit_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"model_limits": text})
    assert words in str(caught.value)
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)


async def test_limits_of_an_unknown_model_stop_the_start_unless_a_repository_may_bring_it(
    running: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"model_limits": {"none": {"top_k": 1}, "held": {"top_k": 1}}}
    with pytest.raises(ValueError, match="model_limits names none: no such model is served; there are: held"):
        async with running(settings=settings):
            raise AssertionError("it started")
    with caplog.at_level(logging.WARNING):
        async with running(settings={**settings, "repository": str(tmp_path)}) as app:
            assert (await app.client.get("/readyz")).status_code == 200
    assert [each.getMessage() for each in caplog.records if each.name == "milkweed.limits"] == [
        "model_limits names none: no such model is served; there are: held"
    ]


async def test_defaults_of_a_model_hold_in_every_protocol(running: Start) -> None:
    limits = {"other": {"top_k": 2, "max_images_per_request": 2, "timeout_ms": 9000, "max_batch_size": 4}}
    async with running(settings={"model_limits": limits, "top_k": 3}, names=("held", "other")) as app:
        image = encoded()
        raw = {"inference-header-content-length": "0"}
        for name, classes in (("held", 3), ("other", 2)):
            answer = await app.client.post("/classify", params={"model": name}, content=image)
            assert len(answer.json()["results"][0]["predictions"]) == classes
            infer = await app.client.post(f"/v2/models/{name}/infer", content=image, headers=raw)
            assert f'"shape": [1, {classes}]'.encode() in infer.content
            files = [("image", (f"{n}.png", image)) for n in range(3)]
            several = await app.client.post("/classify", params={"model": name}, files=files)
            assert several.status_code == (200 if name == "held" else 413)
        listed = {each["name"]: each for each in (await app.client.get("/v1/models")).json()["models"]}
        assert listed["other"]["max_batch_size"] == 4
        assert listed["other"]["limits"] == {
            "max_queue_images": 1024,
            "max_images_per_request": 2,
            "timeout_ms": 9000,
            "top_k": 2,
        }
        assert listed["held"]["limits"]["max_images_per_request"] == 256
        config = (await app.client.get("/v2/models/other/config")).json()["parameters"]
        assert {name: int(each["string_value"]) for name, each in config.items()} == listed["other"]["limits"]


async def test_the_timeout_of_a_model_ends_requests_that_name_none(running: Start) -> None:
    async with running(settings={"model_limits": {"other": {"timeout_ms": 500}}}, names=("held", "other")) as app:
        image, raw = encoded(), {"inference-header-content-length": "0"}
        app.models["other"].gate.clear()
        for path, headers in (("/classify?model=other", {}), ("/v2/models/other/infer", raw)):
            late = await app.client.post(path, content=image, headers=headers)
            assert late.status_code in (503, 504), late.text
            # On a busy machine half a second may be over before the image is queued.
            assert late.status_code == 503 or "500 ms" in late.text or "could be queued" in late.text, late.text


async def test_a_flood_of_one_model_leaves_room_for_others(running: Start) -> None:
    limits = {"flood": {"max_queue_images": 4, "max_batch_size": 1}}
    settings = {"model_limits": limits, "max_queue_images": 12, "max_images_per_request": 4, "max_batch_size": 4}
    async with running(settings=settings, names=("flood", "calm")) as app:
        app.models["flood"].gate.clear()

        async def ask(model: str, seed: int, **headers: str) -> httpx.Response:
            content = encoded(seed=seed)
            return await app.client.post("/classify", params={"model": model}, content=content, headers=headers)

        first = asyncio.create_task(ask("flood", 0))
        await entered(app.models["flood"])  # the device is busy with it
        flood = [asyncio.create_task(ask("flood", seed)) for seed in range(1, 21)]
        await until(lambda: sum(task.done() for task in flood) == 16)
        refused = [task.result() for task in flood if task.done()]
        for answer in refused:
            check_error(answer, 503, "overloaded", "4 images of flood wait", "limit 4 of this model")
            assert int(answer.headers["retry-after"]) >= 1
        bulk = await ask("flood", 30, **{"x-priority": "bulk"})
        check_error(bulk, 503, "overloaded", "bulk limit 2 of this model")
        # As many places as the flood has not are for the others, and all are taken.
        calm = [asyncio.create_task(ask("calm", seed)) for seed in range(8)]
        await until(lambda: app.service.scheduler.depth == 12)
        check_error(await ask("calm", 9), 503, "overloaded", "12 images wait", "limit 12")
        app.models["flood"].gate.set()
        answers = [await task for task in (first, *flood, *calm)]
        assert sorted(answer.status_code for answer in answers) == [200] * 13 + [503] * 16
        assert [answer.status_code for answer in answers[-8:]] == [200] * 8
        assert (await ask("flood", 40)).status_code == 200
