"""Shadows: what they are compared by, and that no client notices them."""

import asyncio
import math
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

from milkweed.server.service import shadows
from milkweed.server.service.shadows import agreement, divergence

from ...support.server_parts import (
    CLASSES,
    Running,
    Start,
    broken,
    encoded,
    entered,
    running_app,
    until,
)
from .shadow_case import ALL, LABELS, NAMES, alike, distribution, done, figures, outcomes, unlike


async def test_agreement_divergence_and_outcomes_are_those_of_both_models(running: Start) -> None:
    images = [encoded(seed=seed, size=(2, 2)) for seed in range(40)]
    async with running(settings=ALL, names=NAMES) as app:
        unlike(app)
        for first in range(0, 40, 8):
            files = [("image", (str(i), image, "image/png")) for i, image in enumerate(images[first : first + 8])]
            assert (await app.classify(files=files)).status_code == 200
        await done(app, 40)
        both = [[distribution(app, name, image) for name in NAMES] for image in images]
        same = sum(max(p, key=p.__getitem__) == max(q, key=q.__getitem__) for p, q in both)
        kl = [sum(p[i] * math.log(p[i] / q[i]) for i in p) for p, q in both]
        assert 0 < same < 40
        assert outcomes(app) == {"same": same, "other": 40 - same}
        seen = await figures(app)
        assert (seen["of"], seen["images"], seen["off"]) == ("big", 40, None)
        assert seen["agreement"] == list(agreement(same, 40))
        assert seen["kl"] == pytest.approx(sum(kl) / 40, rel=1e-4)
        assert app.value("shadow_kl_sum", **LABELS) == pytest.approx(sum(kl), rel=1e-4)
        assert app.value("shadow_seconds_difference_count", **LABELS) == 40
        assert await figures(app, "big") is None
        # What the shadow answered, nobody got.
        assert app.value("images_total", model="small", outcome="ok") == 0
        assert app.value("prediction_confidence_count", model="small") == 0
        # Never the other way round.
        await app.classify(params={"model": "small"})
        await app.classify(params={"model": "big"})
        await done(app, 41)


def test_the_interval_is_wilsons() -> None:
    # Computed by statsmodels' proportion_confint(95, 100, method="wilson").
    assert agreement(95, 100) == pytest.approx((0.95, 0.888250, 0.978458), abs=2e-6)
    assert agreement(5, 5)[2] == 1.0
    assert agreement(0, 5)[:2] == (0.0, 0.0)


def test_a_class_that_the_shadow_rounds_to_nothing_costs_a_finite_number() -> None:
    p, q = np.array([0.5, 0.5, 0], np.float32), np.array([1, 0, 0], np.float32)
    expected = 0.5 * math.log(0.5) + 0.5 * math.log(0.5 / np.finfo(np.float32).tiny)
    assert divergence(p.tobytes(), q.tobytes()) == pytest.approx(expected)
    assert divergence(p.tobytes(), p.tobytes()) == 0


@pytest.mark.parametrize(("share", "turns"), [(0.05, 20), (0.25, 4), (0.0, 7), (1.0, 7)])
async def test_the_share_is_kept_and_of_images_that_come_in_turns_too(running: Start, share: float, turns: int) -> None:
    async with running(settings={"shadow": f"small=big:{share}"}, names=NAMES) as app:
        model, chosen = app.service.models["big"], list[int]()
        for number in range(0, 4000, 8):
            request: Any = type("Request", (), {"sampled": {}, "caller": None})()
            images: Any = [(place, b"", type("Info", (), {"cropped": False})()) for place in range(8)]
            app.service.shadows.sample(request, model, images)
            chosen += [number + place for place in request.sampled]
        assert len(chosen) == pytest.approx(4000 * share, abs=4)
        by_turn = Counter(number % turns for number in chosen)
        assert all(by_turn[turn] == pytest.approx(4000 * share / turns, abs=5) for turn in range(turns))
        request.sampled.clear()
        images[0][2].cropped = True  # for a model that preprocesses alike, as here
        app.service.shadows.sample(request, model, images[:1] * 1000)
        assert len(request.sampled) == (share > 0)


async def answers(app: Running) -> list[Any]:
    files = [("image", (str(i), image, "image/png")) for i, image in enumerate((encoded(), broken(), encoded(seed=3)))]
    sent: list[dict[str, Any]] = [
        {"image": encoded(seed=1)},
        {"image": encoded("JPEG", size=(40, 40)), "params": {"top_k": 3}},
        {"files": files, "params": {"top_k": CLASSES, "embedding": "true"}},
        {"files": files, "headers": {"accept": "application/x-ndjson"}},
        {"image": broken()},
        {"image": encoded(), "headers": {"x-priority": "bulk"}},
    ]
    got: list[Any] = []
    for each in sent:
        each["headers"] = {**each.get("headers", {}), "x-request-id": "fixed"}
        answer = await app.classify(**each)
        headers = {name: value for name, value in answer.headers.items() if name not in ("server-timing", "date")}
        lines = sorted(answer.content.splitlines()) if "ndjson" in answer.headers["content-type"] else answer.content
        got.append((answer.status_code, headers, lines))
    return got


async def test_no_bit_and_no_header_of_an_answer_changes(running: Start) -> None:
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(running_app(names=NAMES))
        shadowed = await stack.enter_async_context(running_app(settings=ALL, names=NAMES))
        alike(shadowed.model, plain.model)
        unlike(shadowed)
        assert await answers(shadowed) == await answers(plain)
        await done(shadowed, 7)  # of the broken ones none
        assert (await shadowed.client.post("/embed", content=encoded())).status_code == 200
        await done(shadowed, 7)  # who asks for no classes is not compared
        assert app_lost(shadowed) == app_lost(plain) == 0


def app_lost(app: Running) -> float:
    return sum(app.value("images_total", model="big", outcome=each) for each in ("rejected", "expired", "error"))


async def test_under_load_shadows_are_dropped_first_and_no_client_loses_a_place(running: Start) -> None:
    settings = {**ALL, "max_queue_images": 8, "max_images_per_request": 8, "max_batch_size": 8}
    async with running(settings=settings, names=NAMES) as app:
        big, small = app.models["big"], app.models["small"]
        alike(small, big)
        big.gate.clear()
        small.gate.clear()
        files = [("image", (str(i), encoded(seed=i), "image/png")) for i in range(8)]
        first = app.begin(files=files)
        await entered(big)
        other = app.begin(params={"model": "small"})
        await until(lambda: app.service.scheduler.depth == 1)
        big.gate.set()
        assert (await first).status_code == 200
        await entered(small)  # which holds the device, so that shadows fill their half of the queue
        await until(lambda: app.service.scheduler.depth + outcomes(app).get("dropped", 0) == 8)
        dropped = outcomes(app)["dropped"]
        assert dropped >= 4
        clients = [app.begin(encoded(seed=seed)) for seed in range(8)]
        await until(lambda: app.service.scheduler.depth == 16 - dropped)
        small.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(other, *clients)] == [200] * 9
        await done(app, 16)
        assert app_lost(app) == 0
        assert outcomes(app)["same"] + outcomes(app)["dropped"] == 16


async def test_what_others_go_before_for_too_long_is_dropped(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "BULK_DELAY_SECONDS", 0.0)
    async with running(settings=ALL, names=NAMES) as app:
        first = await app.hold()
        app.models["small"].gate.clear()
        other = app.begin(params={"model": "small"})
        await until(lambda: app.service.scheduler.depth == 1)
        app.model.gate.set()
        assert (await first).status_code == 200
        await until(lambda: outcomes(app) == {"dropped": 1})
        app.models["small"].gate.set()
        assert (await other).status_code == 200
        await done(app, 1)
        assert app.service.scheduler._given_up == pytest.approx(0.0)


async def test_where_bodies_hold_much_memory_shadows_hold_none(running: Start) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        app.service.body_budget.limit = 4 * len(encoded())
        assert (await app.classify()).status_code == 200
        await done(app, 1)
        assert outcomes(app) == {"dropped": 1}
        assert (await figures(app))["images"] == 0
        assert (await figures(app))["agreement"] is None


async def test_what_only_the_shadow_fails_is_a_disagreement(running: Start) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        alike(app.models["small"], app.model)
        assert (await app.classify()).status_code == 200
        await done(app, 1)
        app.models["small"].failure = RuntimeError("no kernel")
        assert (await app.classify()).status_code == 200
        await done(app, 2)
        assert outcomes(app) == {"same": 1, "failed": 1}
        assert (await figures(app))["agreement"] == list(agreement(1, 2))


async def test_a_client_that_leaves_is_no_evidence(running: Start) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        gone = await app.hold()
        gone.cancel()
        await until(lambda: not app.service.dispatcher.requests)
        app.model.gate.set()
        assert (await app.classify()).status_code == 200
        await done(app, 1)


async def test_a_server_that_ends_waits_for_no_shadow(running: Start) -> None:
    async with running(settings=ALL, names=NAMES) as app:
        app.models["small"].gate.clear()
        assert (await app.classify()).status_code == 200
        await entered(app.models["small"])
        answer = app.begin()
        await until(lambda: app.service.scheduler.depth == 1)
        app.service.shadows.close()
        app.models["small"].gate.set()
        assert (await answer).status_code == 200
        await until(lambda: not app.service.shadows._tasks)
        assert app.service.scheduler.depth == 0
        assert app.service.body_budget.total == 0
