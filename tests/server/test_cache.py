"""The response cache: what it knows is answered without queue or device, bit for bit, and nothing else ever is."""

import asyncio
import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.server.cache import INLINE_BYTES, ResponseCache, cost
from milkweed.server.metrics import STAGES, Metrics
from milkweed.server.outcome import Predictions
from milkweed.server.security.keys import key_block, new_key

pytestmark = pytest.mark.anyio

KEY = new_key()
CACHE = {"cache_bytes": 1 << 20}


def key(number: int, instance: int = 1) -> bytes:
    return struct.pack("<QQII", number, 0, 5, instance)


def predictions(classes: int, seed: int = 0) -> Predictions:
    chance = random.Random(seed)
    index = tuple(chance.randrange(100_000) for _ in range(classes))
    return Predictions(index, tuple(chance.random() for _ in index))


@pytest.mark.parametrize(("classes", "entries"), [(1, 3000), (5, 300), (5, 20_000), (1000, 300)])
def test_what_it_takes_is_within_a_factor_of_two_of_its_estimate(classes: int, entries: int) -> None:
    cache = ResponseCache(1 << 40, Metrics())
    outcome = predictions(classes)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(entries):
        cache._put(key(number), outcome)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(cache) == entries
    assert 0.5 < taken / cache.bytes < 2


def test_bytes_are_bounded_and_the_least_recently_used_goes_first() -> None:
    metrics = Metrics()
    one = cost(key(0), bytes(60))  # of five classes
    cache = ResponseCache(10 * one, metrics)
    for number in range(10):
        cache._put(key(number), predictions(5, number))
    assert (len(cache), cache.bytes) == (10, 10 * one)
    cache._entries.move_to_end(key(0))
    cache._put(key(10), predictions(5))
    assert (len(cache), cache.bytes) == (10, 10 * one)
    assert key(0) in cache._entries
    assert key(1) not in cache._entries
    cache._put(key(10), predictions(7))  # in its own place: two more classes cost what another entry must give
    assert cache.bytes <= 10 * one
    assert cache.bytes == sum(cost(*each) for each in cache._entries.items())
    kept = dict(cache._entries)
    cache._put(key(11), predictions(1000))  # larger than all of it
    assert cache._entries == kept
    value = metrics.registry.get_sample_value
    assert value("milkweed_cache_evictions_total") == 2
    assert value("milkweed_cache_bytes") == cache.bytes
    assert value("milkweed_cache_entries") == len(cache)


def test_a_model_that_goes_takes_its_answers_with_it() -> None:
    cache = ResponseCache(1 << 20, Metrics())
    instances = {name: struct.unpack("<I", cache._instance(name))[0] for name in ("a#1", "a#2")}
    for number in range(20):
        for instance in instances.values():
            cache._put(key(number, instance), predictions(5))
    whole = cache.bytes
    cache.forget_model("a#1")
    cache.forget_model("never")
    assert (len(cache), 2 * cache.bytes) == (20, whole)
    assert cache._instance("a#1") not in {struct.pack("<I", each) for each in instances.values()}  # never twice


async def ask(app: Any, image: bytes, *, params: Any = None, **headers: str) -> httpx.Response:
    answer = await app.client.post("/classify", content=image, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def counts(app: Any) -> tuple[float, float]:
    return app.value("cache_hits_total", model="held"), app.value("cache_misses_total", model="held")


async def test_an_image_that_comes_again_is_answered_without_the_model(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        image = kit.encoded()
        first = await ask(app, image)
        app.model.gate.clear()  # from here on the model answers nobody
        again = await ask(app, image)
        assert (first.headers["x-cache"], again.headers["x-cache"]) == ("MISS", "HIT")
        assert again.json()["results"] == first.json()["results"]
        assert json.dumps(again.json()["results"]) == json.dumps(first.json()["results"])  # to the last digit
        assert app.model.sizes == [1]
        assert counts(app) == (1, 1)
        assert app.value("cache_entries") == 1
        assert app.value("images_total", model="held", outcome="ok") == 2


async def test_stages_of_a_hit_are_whole_and_those_of_the_engine_take_no_time(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        image = kit.encoded()
        await ask(app, image)
        before = {stage: app.value("request_stage_duration_seconds_sum", model="held", stage=stage) for stage in STAGES}
        total_before = app.value("http_request_duration_seconds_sum", route="/classify", method="POST", code="200")
        answer = await ask(app, image)
        after = {stage: app.value("request_stage_duration_seconds_sum", model="held", stage=stage) for stage in STAGES}
        for stage in STAGES:
            assert app.value("request_stage_duration_seconds_count", model="held", stage=stage) == 2
        spent = {stage: after[stage] - before[stage] for stage in STAGES}
        assert all(spent[stage] == 0 for stage in STAGES[2:8]), spent
        assert min(spent["receive"], spent["parse"], spent["respond"]) > 0
        total = app.value("http_request_duration_seconds_sum", route="/classify", method="POST", code="200")
        assert sum(spent.values()) == pytest.approx(total - total_before, rel=1e-6)
        timing = kit.timings(answer)
        assert set(timing) == {*STAGES, "total"}
        assert sum(timing[stage] for stage in STAGES) == pytest.approx(timing["total"], abs=0.02)


async def test_several_images_are_answered_in_part(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        images = [kit.encoded(seed=seed) for seed in range(4)]
        alone = [(await ask(app, image)).json()["results"][0] for image in images[:2]]
        files = [("image", (f"{place}.png", image)) for place, image in enumerate([images[2], *images[:2], images[3]])]
        answer = await app.client.post("/classify", files=[*files, ("image", ("x", b"no image"))])
        assert answer.headers["x-cache"] == "PARTIAL"
        results = answer.json()["results"]
        assert results[1:3] == alone
        assert "predictions" in results[0]
        assert results[4]["error"]["code"] == "unsupported_format"
        assert sum(app.model.sizes) == 4  # each image once
        assert counts(app) == (2, 4)
        answer = await app.client.post("/classify", files=files)
        assert answer.headers["x-cache"] == "HIT"
        assert answer.json()["results"] == results[:4]
        assert sum(app.model.sizes) == 4


async def test_lines_come_from_the_cache_too(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        files = [("image", (f"{seed}.png", kit.encoded(seed=seed))) for seed in range(3)]
        headers = {"accept": "application/x-ndjson"}
        first = await app.client.post("/classify", files=files, headers=headers)
        again = await app.client.post("/classify", files=files, headers=headers)
        assert (first.headers["x-cache"], again.headers["x-cache"]) == ("MISS", "HIT")

        def lines(answer: httpx.Response) -> list[Any]:
            rows = [json.loads(line) for line in answer.text.splitlines()]
            assert rows[-1]["succeeded"] == 3
            return sorted(rows[:-1], key=lambda row: row["image"])

        assert lines(first) == lines(again)
        assert sum(app.model.sizes) == 3
        assert app.value("images_total", model="held", outcome="ok") == 6


async def test_the_open_protocol_shares_it(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        image = kit.encoded()
        await ask(app, image)
        answer = await app.client.post(
            "/v2/models/held/infer", content=image, headers={"inference-header-content-length": "0"}
        )
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "HIT")
        assert app.model.sizes == [1]


async def test_only_the_same_question_is_a_hit(running: Any, kit: Any) -> None:
    async with running(settings=CACHE, names=("held", "other")) as app:
        image = kit.encoded()
        await ask(app, image)
        for params in ({"top_k": 2}, {"top_k": 7}, {"model": "other"}):
            assert (await ask(app, image, params=params)).headers["x-cache"] == "MISS"
        changed = bytearray(image)
        changed.append(0)  # what comes after a PNG's end changes nothing but its bytes
        assert (await ask(app, bytes(changed))).headers["x-cache"] == "MISS"
        assert (await ask(app, image, params={"top_k": 5})).headers["x-cache"] == "HIT"  # which is the default


async def test_errors_are_not_kept(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        for _ in range(2):
            answer = await app.client.post("/classify", content=kit.broken())
            assert (answer.status_code, answer.headers["x-cache"]) == (422, "MISS")
        app.model.failure = RuntimeError("once")
        image = kit.encoded()
        assert (await app.client.post("/classify", content=image)).status_code == 500
        app.model.failure = None
        assert (await ask(app, image)).headers["x-cache"] == "MISS"
        refused = await app.client.post("/classify", content=b"no image")
        assert "x-cache" not in refused.headers  # nothing was looked up
        assert app.value("cache_entries") == 1


async def test_a_request_may_ask_for_a_new_answer(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        image, other = kit.encoded(), kit.encoded(seed=1)
        await ask(app, image)
        before = counts(app)
        assert (await ask(app, image, **{"cache-control": "no-cache"})).headers["x-cache"] == "MISS"
        assert (await ask(app, other, **{"cache-control": "max-age=0, No-Cache"})).headers["x-cache"] == "MISS"
        assert (await ask(app, image, **{"cache-control": "no-store"})).headers["x-cache"] == "MISS"
        assert len(app.model.sizes) == 4
        assert counts(app) == before
        assert (await ask(app, other)).headers["x-cache"] == "HIT"  # no-cache keeps the new answer
        third = kit.encoded(seed=2)
        await ask(app, third, **{"cache-control": "no-store"})
        assert (await ask(app, third)).headers["x-cache"] == "MISS"


async def test_another_instance_of_a_model_knows_nothing_of_the_last_one(running: Any, kit: Any) -> None:
    async with running(settings=CACHE) as app:
        image = kit.encoded()
        await ask(app, image)
        assert app.value("cache_entries") == 1
        await app.service.rollout.bring_in("held", Path("held"))
        await app.service.rollout.settled()
        assert app.value("cache_entries") == 0
        assert app.value("cache_bytes") == 0
        assert (await ask(app, image)).headers["x-cache"] == "MISS"
        assert (await ask(app, image)).headers["x-cache"] == "HIT"


async def test_hits_pass_a_queue_that_is_full(running: Any, kit: Any) -> None:
    settings = {**CACHE, "max_queue_images": 1, "max_images_per_request": 1, "max_batch_size": 1}
    async with running(settings=settings) as app:
        image = kit.encoded()
        await ask(app, image)
        await kit.entered(app.model)
        app.model.gate.clear()
        waiting = [asyncio.create_task(ask(app, kit.encoded(seed=1)))]
        await kit.entered(app.model)
        waiting.append(asyncio.create_task(ask(app, kit.encoded(seed=2))))
        await kit.until(lambda: app.service.batcher.depth == 1)
        full = await app.client.post("/classify", content=kit.encoded(seed=3))
        assert full.status_code == 503
        assert (await ask(app, image)).headers["x-cache"] == "HIT"
        app.model.gate.set()
        await asyncio.gather(*waiting)


async def test_without_the_setting_nothing_is_kept_or_said(running: Any, kit: Any) -> None:
    async with running() as app:
        assert app.service.cache is None
        for _ in range(2):
            assert "x-cache" not in (await ask(app, kit.encoded())).headers
        assert app.model.sizes == [1, 1]
        assert counts(app) == (0, 0)
        assert app.value("cache_bytes") == 0


async def test_another_process_would_have_another_secret(running: Any, kit: Any) -> None:
    secrets = set()
    for _ in range(2):
        async with running(settings=CACHE) as app:
            await ask(app, kit.encoded())
            secrets.add(next(iter(app.service.cache._entries))[:16])
    assert len(secrets) == 2


async def test_a_hit_needs_a_key_and_counts_against_its_rate(running: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("camera", KEY) + "requests_per_second = 0.01\nrequest_burst = 2\n")
    async with running(settings={**CACHE, "api_keys": str(keys)}) as app:
        image, headers = kit.encoded(), {"authorization": f"Bearer {KEY}"}
        said = [(await ask(app, image, **headers)).headers["x-cache"] for _ in range(2)]
        assert said == ["MISS", "HIT"]
        assert (await app.client.post("/classify", content=image)).status_code == 401
        assert (await app.client.post("/classify", content=image, headers=headers)).status_code == 429


async def test_a_large_request_is_digested_without_holding_the_loop(running: Any, kit: Any) -> None:
    """More than a megabyte in all goes to another thread, and comes to the same digests."""
    async with running(settings=CACHE) as app:
        images = [kit.encoded("BMP", seed=seed, size=(400, 300)) for seed in range(4)]
        assert sum(map(len, images)) > INLINE_BYTES > max(map(len, images))
        alone = [(await ask(app, image)).json()["results"][0] for image in images]
        files = [("image", (f"{place}", image)) for place, image in enumerate(images)]
        together = await app.client.post("/classify", files=files)
        assert together.headers["x-cache"] == "HIT"
        assert together.json()["results"] == alone
