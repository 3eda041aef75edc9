"""The evidence of shadows: when it begins anew, what turns it off, and the alias that waits for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.server.admin.app import create_admin_app
from milkweed.server.config.settings import Settings
from milkweed.server.service.shadows import agreement

from ...support.server_parts import (
    CLASSES,
    HeldModel,
    Start,
    entered,
    make_pipeline,
    running_app,
    served_model,
)
from .shadow_case import ALL, NAMES, alike, done, figures, outcomes


@pytest.mark.parametrize("name", NAMES)
async def test_evidence_begins_anew_with_another_version_of_either(running: Start, name: str) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        await app.classify()
        await done(app, 1)
        app.models["small"].gate.clear()
        await app.classify()  # is being compared when the version changes
        await entered(app.models["small"])
        await entered(app.models["small"])
        await app.service.lifecycle.load(name, Path(name))
        assert (await figures(app))["images"] == 0
        app.models["small"].gate.set()
        await done(app, 0)
        await app.classify()
        await done(app, 1)
        assert (await figures(app))["images"] == 1


async def test_a_later_version_with_other_classes_turns_it_off(
    running: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        model = served_model("small", make_pipeline(HeldModel(3), classes=3))
        app.opening.open_model = lambda *_, **__: model
        await app.service.lifecycle.load("small", Path("small"))
        assert (await app.classify()).status_code == 200
        seen = await figures(app)
        assert (seen["images"], seen["agreement"], seen["kl"]) == (0, None, None)
        assert seen["off"] == "small cannot be a shadow of big: its class 3 is None, not 'label \"3\" ü'"
        assert seen["off"] in caplog.text
        assert not outcomes(app)
        await app.service.lifecycle.unload("big")
        assert (await figures(app))["off"] == "no model big is served"


async def test_a_start_with_other_classes_or_unknown_models_fails_in_one_line() -> None:
    def pipeline_of(name: str, _: Path, settings: Settings, **__: Any) -> Any:
        classes = {"big": CLASSES, "small": 3}[name]
        return served_model(name, make_pipeline(HeldModel(classes), classes=classes), settings)

    for setting, words in (
        ("small=big:1", "small cannot be a shadow of big"),
        ("small=huge:1", "shadow names huge: no such model is served; there are: big, small"),
        ("tiny=big:1", "shadow names tiny: no such model is served; there are: big, small"),
    ):
        asked = {"settings": {"shadow": setting}, "names": NAMES, "wait": False}
        async with running_app(**asked, open_model=pipeline_of) as app:
            with pytest.raises(ValueError, match=words) as caught:
                await asyncio.wrap_future(app.service.prepared)
            assert "\n" not in str(caught.value)


async def test_an_alias_moves_once_the_evidence_is_there(running: Start) -> None:
    async with running(settings={**ALL, "aliases": "production=big"}, names=NAMES) as app:
        alike(app.models["small"], app.model)
        transport = httpx.ASGITransport(app=create_admin_app(app.service))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:

            async def move(model: str = "small", **condition: Any) -> tuple[int, Any]:
                condition = {"shadow_agreement": 0.5, "images": 6, **condition}
                answer = await admin.put("/v1/aliases/production", json={"model": model, "if": condition})
                return answer.status_code, answer.json()

            def refusal(answer: tuple[int, Any]) -> tuple[int, str]:
                return answer[0], answer[1]["error"]["code"]

            assert refusal(await move()) == (409, "not_yet")
            for count in range(1, 6):
                await app.classify(params={"model": "production"})
                await done(app, count)
            status, body = await move()
            share, low, high = agreement(5, 5)
            text = f"the agreement is {share:.4f}, its 95 % interval {low:.4f} to {high:.4f}, over 5 images"
            assert (status, body["error"]) == (
                409,
                {"code": "not_yet", "message": f"{text}: asked for is 0.5 over 6"},
            )
            assert refusal(await move(images=5, shadow_agreement=0.6)) == (409, "not_yet")
            assert refusal(await move("big")) == (409, "conflict")
            assert refusal(await move("nobody")) == (404, "unknown_model")
            assert str(app.service.models.aliases["production"]) == "big"
            for bad in (
                {"images": 0},
                {"images": "5"},
                {"shadow_agreement": 1.1},
                {"shadow_agreement": None},
                {"x": 1},
            ):
                status, body = await move(**bad)
                assert (status, body["error"]["code"]) == (400, "bad_request")
                assert body["error"]["message"].startswith("if.")
            assert await move(images=5) == (
                200,
                {"name": "production", "model": "small", "version": None, "before": "big"},
            )
            assert json.loads((await app.classify(params={"model": "production"})).content)["model"] == "small"
