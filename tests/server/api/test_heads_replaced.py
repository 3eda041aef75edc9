"""Heads at the start and by the admin API: what requests do while heads are replaced, and what is refused."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from milkweed.models.heads.embedding_head import parse_head

from ...models.heads.plain_head import make_head
from ...support.server_parts import CLASSES, Running, Start, check_error
from .heads_case import BIRDS, FINE, IMAGES, LINES, ZOO, check, parts, scores

pytestmark = pytest.mark.usefixtures("birds_and_zoo")


async def test_a_request_that_runs_keeps_its_head(app: Running, admin: httpx.AsyncClient) -> None:
    newer = make_head(5, seed=3)
    held = await app.hold()
    asked = [app.begin(files=parts(IMAGES), params={"head": "birds"}, headers=h) for h in ({}, LINES)]
    gone = app.begin(IMAGES[0], params={"head": "zoo"})
    while len(app.service.dispatcher.requests) < 4:
        await asyncio.sleep(0)
    answer = await admin.put("/v1/models/held/heads/birds", content=newer.to_bytes())
    version = parse_head(newer.to_bytes()).version
    assert answer.json() == {
        "name": "birds",
        "version": version,
        "num_classes": 5,
        "model_version": None,
        "before": BIRDS.version,
    }
    assert (await admin.delete("/v1/models/held/heads/zoo")).json()["deleted"]["name"] == "zoo"
    app.model.gate.set()
    await held
    plain, lines = [await task for task in asked]
    assert plain.json()["head_version"] == json.loads(lines.text.splitlines()[-1])["head_version"] == BIRDS.version
    results = [
        plain.json()["results"],
        sorted(map(json.loads, lines.text.splitlines()[:-1]), key=lambda it: it["image"]),
    ]
    for entries in results:
        for entry, right in zip(entries, scores(app, BIRDS), strict=True):
            check(entry["predictions"], BIRDS, right)
    check((await gone).json()["results"][0]["predictions"], ZOO, scores(app, ZOO)[0])
    after = (await app.classify(IMAGES[0], params={"head": "birds"})).json()
    assert after["head_version"] == version
    check(after["results"][0]["predictions"], newer, scores(app, newer)[0])
    check_error(await app.classify(params={"head": "zoo"}), 404, "unknown_head", "there are: birds")
    there = {
        sample.labels["version"]
        for family in app.service.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "milkweed_head_images_total" and sample.labels["head"] == "birds"
    }
    assert version in there


async def test_each_answer_is_wholly_of_one_head_while_they_are_replaced(
    app: Running, admin: httpx.AsyncClient
) -> None:
    made = [make_head(CLASSES + 3, seed=seed).to_bytes() for seed in (4, 5, 6)]
    by_version = {head.version: head for head in map(parse_head, made)} | {BIRDS.version: BIRDS}
    right = {version: scores(app, head) for version, head in by_version.items()}
    seen: Counter[str] = Counter()
    enough = asyncio.Event()

    async def ask() -> None:
        while not enough.is_set():
            body = (await app.classify(files=parts(IMAGES), params={"head": "birds"})).json()
            version = body["head_version"]
            for result, row in zip(body["results"], right[version], strict=True):
                check(result["predictions"], by_version[version], row)
            seen[version] += 1
            if len(seen) == 4 and seen.total() >= 40:
                enough.set()

    async def replace() -> None:
        turn = 0
        while not enough.is_set():
            answer = await admin.put("/v1/models/held/heads/birds", content=made[turn % 3])
            assert answer.status_code == 200
            before = seen.total()
            while seen.total() == before and not enough.is_set():
                await asyncio.sleep(0)
            turn += 1

    await asyncio.gather(*(ask() for _ in range(6)), replace())
    assert set(seen) == set(by_version)


@pytest.mark.parametrize(
    ("path", "content", "status", "code", "words"),
    [
        (
            "held/heads/birds",
            make_head(width=4).to_bytes(),
            409,
            "conflict",
            "its width is 4, that of the model's embeddings 3 (backend torch)",
        ),
        ("other/heads/birds", FINE, 404, "unknown_model", "no model 'other'; there are: held"),
        ("held/heads/b.c", FINE, 400, "bad_request", "head held.b.c: the name must be 1 to 64 letters"),
        ("held/heads/birds", b"", 400, "bad_request", "head held.birds: not a safetensors file"),
        (
            "held/heads/birds",
            make_head(weight=np.full((4, 3), np.nan)).to_bytes(),
            400,
            "bad_request",
            "weight has a value",
        ),
        ("held/heads/birds", make_head(labels=BIRDS.labels).to_bytes(), 400, "bad_request", "10 labels for 4 rows"),
    ],
)
async def test_a_bad_head_is_refused_and_what_serves_goes_on(
    app: Running, admin: httpx.AsyncClient, path: str, content: bytes, status: int, code: str, words: str
) -> None:
    answer = await admin.put(f"/v1/models/{path}", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert words in answer.json()["error"]["message"]
    assert (await app.classify(params={"head": "birds"})).json()["head_version"] == BIRDS.version


async def test_a_head_that_is_too_large_is_refused_before_it_is_whole(
    app: Running, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.server.admin.app.MAX_HEAD_BYTES", 100_000)
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 10_000
            yield bytes(10_000)

    answer = await admin.put("/v1/models/held/heads/birds", content=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "the limit is 100000" in answer.json()["error"]["message"]
    whole = parse_head(make_head(2000, 3).to_bytes())  # larger than the body of an alias may be
    assert (await admin.put("/v1/models/held/heads/birds", content=whole.to_bytes())).status_code == 413
    monkeypatch.undo()
    assert (await admin.put("/v1/models/held/heads/birds", content=whole.to_bytes())).json()["num_classes"] == 2000


async def test_heads_that_are_not_there_cannot_be_deleted(admin: httpx.AsyncClient) -> None:
    for path, code in (("held/heads/fish", "unknown_head"), ("other/heads/birds", "unknown_model")):
        answer = await admin.delete(f"/v1/models/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)


async def test_heads_come_of_the_settings(running: Start, tmp_path: Path) -> None:
    file = tmp_path / "birds.safetensors"
    file.write_bytes(BIRDS.to_bytes())
    async with running(settings={"heads": f"held.birds={file}"}) as app:
        answer = await app.classify(IMAGES[0], params={"head": "birds"})
        check(answer.json()["results"][0]["predictions"], BIRDS, scores(app, BIRDS)[0])
        aliased = {"aliases": "production=held"}
    async with running(settings={"heads": f"held.birds={file}", **aliased}) as app:
        answer = await app.classify(IMAGES[0], params={"head": "birds", "model": "production"})
        assert answer.json()["head"] == "birds"
        assert (
            app.service.metrics.registry.get_sample_value(
                "milkweed_head_images_total", {"model": "held", "head": "birds", "version": BIRDS.version}
            )
            == 1
        )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("other.birds={birds}", "heads names other: no such model is served; there are: held"),
        ("held.birds={missing}", "head held.birds: [Errno 2] No such file or directory"),
        ("held.b+c={birds}", "head held.b+c: the name must be"),
        ("held.birds={wide}", "head held.birds: its width is 4"),
        ("held.birds={torn}", "head held.birds: truncated"),
    ],
)
async def test_a_start_with_a_bad_head_fails_in_one_line(
    running: Start, tmp_path: Path, entry: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {"birds": BIRDS.to_bytes(), "wide": make_head(width=4).to_bytes(), "torn": BIRDS.to_bytes()[:-4]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    setting = entry.format(**{name: tmp_path / name for name in (*contents, "missing")})
    with pytest.raises(ValueError, match="^" + re.escape(words)) as caught:
        async with running(settings={"heads": setting}):
            pass
    assert "\n" not in str(caught.value)
    if entry.startswith("held"):
        async with running(settings={"heads": setting, "start_with_failures": True}) as app:
            assert (await app.classify()).status_code == 200
            assert (await app.client.get("/v1/models")).json()["models"][0]["heads"] == []
        assert any(words in message for message in caplog.messages)


async def test_a_head_of_another_version_of_the_model_is_said_in_the_log(
    app: Running, admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    for version, said in (("0123456789ab", True), (app.service.models["held"].version, False)):
        caplog.clear()
        content = make_head(model_version=version).to_bytes()
        assert (await admin.put("/v1/models/held/heads/birds", content=content)).status_code == 200
        assert any("held.birds was fitted on version '0123456789ab'" in line for line in caplog.messages) == said
