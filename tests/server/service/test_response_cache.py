"""The response cache: what it knows is answered without queue or device, bit for bit, and nothing else ever is."""

import asyncio
import json
import random
import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from milkweed.inference.results import Predictions
from milkweed.loaders.errors import InputError
from milkweed.loaders.headers.info import ImageInfo
from milkweed.server.errors import ServiceError
from milkweed.server.http.parser_threads import INLINE_BYTES, ParserThreads
from milkweed.server.scheduler.request import Outcome
from milkweed.server.security.keys import key_block, new_key
from milkweed.server.service.response_cache import ResponseCache, cost
from milkweed.server.service.submit import Requester
from milkweed.server.telemetry.context import RequestContext

from ...support.server_parts import CLASSES, Start, encoded, entered, make_config, timings, until

KEY = new_key()
CACHE = {"cache_bytes": 1 << 20}
INFO = ImageInfo("PNG", 4, 4, "RGB")


def predictions(classes: int, seed: int = 0) -> Predictions:
    chance = random.Random(seed)
    index = tuple(chance.randrange(100_000) for _ in range(classes))
    return Predictions(index, np.array([chance.random() for _ in index], np.float32).tobytes())


class Engine:
    """Answers what the cache does not: a body's answer is drawn from its bytes. `gate` holds answers back."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def __call__(self, params: Any, images: Sequence[Any], requester: Requester) -> list[Outcome]:
        self.asked.append([body for body, _ in images])
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [
            InputError("undecodable", "bad") if body == b"bad" else predictions(params.top_k, hash(body))
            for body, _ in images
        ]


class Rig:
    """A cache around an engine, and a way to ask it."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.engine = Engine()
        self.registry = CollectorRegistry()
        self.parsers = ParserThreads()
        self.cache = ResponseCache(max_bytes, self.engine, self.parsers, self.registry)

    async def ask(self, *bodies: bytes, digest: bytes = b"v1", top_k: int = 5, **headers: str) -> Any:
        """Outcomes, and what the answer's X-Cache says."""
        model = SimpleNamespace(name="m", digest=digest)
        context = RequestContext([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])
        images = [(body, INFO) for body in bodies]
        params: Any = SimpleNamespace(model=model, top_k=top_k)
        outcomes = await self.cache(params, images, Requester(context, None))
        return outcomes, context.notes.get("cache")

    def value(self, name: str) -> float | None:
        labels = {"model": "m"} if name in ("hits_total", "misses_total") else {}
        return self.registry.get_sample_value(f"milkweed_cache_{name}", labels)


@pytest.mark.parametrize(("classes", "entries"), [(1, 3000), (5, 300), (5, 20_000), (1000, 300)])
async def test_what_it_takes_is_within_a_factor_of_two_of_its_estimate(classes: int, entries: int) -> None:
    cache, outcome = Rig(1 << 40).cache, predictions(classes)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(entries):
        cache._keep(struct.pack("<QQII", number, 0, 5, 1), outcome)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(cache) == entries
    assert 0.5 < taken / cache.bytes < 2


async def test_bytes_are_bounded_and_the_least_recently_used_goes_first() -> None:
    one = cost(bytes(22), bytes(40))  # the key of a two-byte digest, the value of five classes
    rig = Rig(10 * one)
    images = [b"image %d" % number for number in range(12)]
    for image in images[:10]:
        await rig.ask(image)
    assert (len(rig.cache), rig.cache.bytes) == (10, 10 * one)
    assert (await rig.ask(images[0]))[1] == "HIT"
    await rig.ask(images[10])
    assert (len(rig.cache), rig.value("evictions_total"), rig.value("entries")) == (10, 1, 10)
    assert (await rig.ask(images[0]))[1] == "HIT"
    assert (await rig.ask(images[1]))[1] == "MISS"
    kept = rig.cache.bytes
    await rig.ask(images[11], top_k=1000)  # larger than all of it
    assert rig.cache.bytes == rig.value("bytes") == kept <= 10 * one


async def test_the_key_is_all_that_an_answer_depends_on() -> None:
    """It was a counter, which began again when the engine's process did: old classes under a new version."""
    rig = Rig()
    first, _ = await rig.ask(b"x")
    assert await rig.ask(b"x") == (first, "HIT")
    for other in ({"digest": b"v2"}, {"top_k": 4}):
        assert (await rig.ask(b"x", **other))[1] == "MISS"
    assert (await rig.ask(b"y"))[1] == "MISS"
    assert await rig.ask(b"x") == (first, "HIT")  # an older version that comes back knows its answers
    assert Rig().cache._digests([b"x"]) != rig.cache._digests([b"x"])  # a secret of each process


def test_the_digest_of_a_bundle_tells_whatever_answers_depend_on() -> None:
    config = make_config()
    same = replace(config, metrics={"top1": 0.8}, provenance={"source": "elsewhere"}, bytes_on_disk=7)
    assert same.answers_digest("torch") == config.answers_digest("torch") != config.answers_digest("onnxruntime")
    others = [
        replace(config, preprocess={**config.preprocess, "crop_pct": 0.5}),
        replace(config, arch="other"),
        replace(config, arch_args={"num_classes": CLASSES, "depth": 3}),
        replace(config, files={**config.files, "labels.json": "2" * 64}),
        replace(config, storage={"head": "int8"}),
    ]
    assert len({each.answers_digest("torch") for each in (config, *others)}) == 1 + len(others)


async def test_equal_images_are_computed_once() -> None:
    rig = Rig()
    rig.engine.gate.clear()
    asking = [asyncio.create_task(rig.ask(b"x", b"y", b"x")), asyncio.create_task(rig.ask(b"y"))]
    await until(lambda: bool(rig.engine.asked))
    rig.engine.gate.set()
    (first, said), (second, also_said) = await asyncio.gather(*asking)
    assert rig.engine.asked == [[b"x", b"y"]]
    assert (first[0], first[1], said, also_said) == (first[2], second[0], "PARTIAL", "HIT")
    assert (rig.value("hits_total"), rig.value("misses_total")) == (2, 2)


@pytest.mark.parametrize("how", ["fails", "leaves"])
async def test_whoever_waited_for_an_answer_that_did_not_come_asks_himself(how: str) -> None:
    rig = Rig()
    rig.engine.gate.clear()
    leader = asyncio.create_task(rig.ask(b"x"))
    follower = asyncio.create_task(rig.ask(b"x"))
    await until(lambda: bool(rig.engine.asked))
    if how == "fails":
        rig.engine.failure = ServiceError("overloaded", "not now")
        rig.engine.gate.set()
        with pytest.raises(ServiceError, match="not now"):
            await leader
        rig.engine.failure = None
    else:
        leader.cancel()
        rig.engine.gate.set()
    outcomes, said = await follower
    assert (isinstance(outcomes[0], Predictions), said) == (True, "MISS")
    assert rig.engine.asked == [[b"x"], [b"x"]]
    assert (await rig.ask(b"x"))[1] == "HIT"


async def test_errors_are_not_kept() -> None:
    rig = Rig()
    for _ in range(2):
        outcomes, said = await rig.ask(b"bad", b"good")
        assert outcomes[0].code == "undecodable"
    assert (said, len(rig.cache)) == ("PARTIAL", 1)
    assert rig.engine.asked == [[b"bad", b"good"], [b"bad"]]


@pytest.mark.parametrize("said", ["no-cache", "no-store", "max-age=0, No-Cache"])
async def test_a_request_may_go_past_it(said: str) -> None:
    rig = Rig()
    await rig.ask(b"x")
    assert (await rig.ask(b"x", b"y", cache_control=said))[1] == "MISS"
    assert rig.engine.asked == [[b"x"], [b"x", b"y"]]
    assert (len(rig.cache), rig.value("hits_total"), rig.value("misses_total")) == (1, 0, 1)


async def test_a_large_request_is_digested_without_holding_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    images = [bytes([seed]) * (INLINE_BYTES // 2) for seed in range(3)]
    alone = [(await rig.ask(image))[0][0] for image in images]
    used: list[int] = []
    threads = rig.parsers.threads
    submit = threads.submit
    monkeypatch.setattr(threads, "submit", lambda *work: used.append(1) or submit(*work))  # type: ignore[func-returns-value]
    assert await rig.ask(*images) == (alone, "HIT")
    assert used == [1]


# In a service.


async def ask(app: Any, image: bytes, *, params: Any = None, **headers: str) -> httpx.Response:
    answer = await app.classify(image, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def test_an_image_that_comes_again_is_answered_without_the_model(running: Start) -> None:
    async with running(settings=CACHE) as app:
        image = encoded()
        first = await ask(app, image)
        await app.service.lifecycle.load("held", Path("held"))  # the same bundle again still knows its answers
        await app.service.lifecycle.settled()
        app.model.gate.clear()  # from here on the model answers nobody
        again = await ask(app, image)
        assert (first.headers["x-cache"], again.headers["x-cache"]) == ("MISS", "HIT")
        assert json.dumps(again.json()["results"]) == json.dumps(first.json()["results"])  # to the last digit
        assert app.value("images_total", model="held", outcome="ok") == 2
        assert set(timings(again)) == {"receive", "parse", "respond", "total"}
        assert app.value("request_stage_duration_seconds_count", model="held", stage="respond") == 1
        raw = {"inference-header-content-length": "0"}
        inferred = await app.client.post("/v2/models/held/infer", content=image, headers=raw)
        assert (inferred.status_code, inferred.headers["x-cache"]) == (200, "HIT")
        assert app.model.sizes == [1]
        app.model.gate.set()
        lines = await ask(app, image, accept="application/x-ndjson")  # goes past the cache
        assert "x-cache" not in lines.headers
        assert app.model.sizes == [1, 1]


async def test_hits_pass_a_queue_that_is_full(running: Start) -> None:
    settings = {**CACHE, "max_queue_images": 1, "max_images_per_request": 1, "max_batch_size": 1}
    async with running(settings=settings) as app:
        image = encoded()
        await ask(app, image)
        await entered(app.model)
        app.model.gate.clear()
        waiting = [asyncio.create_task(ask(app, encoded(seed=1)))]
        await entered(app.model)
        waiting.append(asyncio.create_task(ask(app, encoded(seed=2))))
        await until(lambda: app.service.scheduler.depth == 1)
        full = await app.classify(encoded(seed=3))
        assert full.status_code == 503
        assert (await ask(app, image)).headers["x-cache"] == "HIT"
        app.model.gate.set()
        await asyncio.gather(*waiting)


async def test_without_the_setting_nothing_is_kept_or_said(running: Start) -> None:
    async with running() as app:
        for _ in range(2):
            assert "x-cache" not in (await ask(app, encoded())).headers
        assert app.model.sizes == [1, 1]


async def test_a_hit_needs_a_key_and_counts_against_its_rate(running: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("camera", KEY) + "requests_per_second = 0.01\nrequest_burst = 2\n")
    async with running(settings={**CACHE, "api_keys": str(keys)}) as app:
        image, headers = encoded(), {"authorization": f"Bearer {KEY}"}
        said = [(await ask(app, image, **headers)).headers["x-cache"] for _ in range(2)]
        assert said == ["MISS", "HIT"]
        assert (await app.classify(image)).status_code == 401
        assert (await app.classify(image, headers=headers)).status_code == 429
