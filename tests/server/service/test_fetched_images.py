"""Images by URL through the whole service: off by default, each in its place, none at its neighbours' cost."""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.fetch.fetcher import fetch_failed
from milkweed.server.service import fetched_images

from ...support.authority import Authority, needs_openssl
from ...support.bodies import as_tensor, most_held, npy
from ...support.raw_call import RawCall
from ...support.server_parts import Running, Start, check_error, encoded, one_reason, timings, until
from ...support.waiting import HANG_SECONDS
from ..fetch.origin import HOST, OTHER, PLAIN, Origin, ok, redirect, running_origin
from ..test_cycles import counted_cycles

URL = f"https://{HOST}/a.png"
NDJSON = {"accept": "application/x-ndjson"}
# Held against each in test_url.py; here, with a listener that would see a connection.
TRICKS = [
    *("https://127.0.0.1/a", "https://localhost/a", "http://169.254.169.254/latest/meta-data/", "https://[::1]/a"),
    *("https://metadata.google.internal/a", "https://2130706433/a", "https://0x7f.1/a", "file:///etc/passwd"),
    *(f"https://user@{HOST}/a.png", f"https://{HOST}@localhost/a", f"https://{HOST}:8443/a", f"http://{HOST}/a"),
    *(f"https://{HOST}./a", f"https://{HOST}\\@localhost/a", f"https://{HOST}\t/a", f" https://{HOST}/a"),
    *(f"gopher://{HOST}/a", "https://elsewhere.example/a", "javascript:alert(1)", "https://ımages.example.com/a"),
    f"https://{HOST}/{'a' * 8192}",
]


def in_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture
async def origin(authority: Authority) -> AsyncIterator[Origin]:
    async with running_origin(authority) as origin:
        origin.answers["/a.png"] = ok(encoded())
        yield origin


pytestmark = needs_openssl


@pytest.fixture
def app(module_app: Running, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> Running:
    """The module's app, which fetches from the origin during one test."""
    module_app.begin_test()
    monkeypatch.setattr(module_app.service.fetched_images, "_fetcher", origin.fetcher())
    return module_app


async def post(app: Running, *images: Any, **options: Any) -> Any:
    return await app.classify(json={"images": list(images)}, **options)


async def test_mixed_lists_answer_in_order(app: Running, origin: Origin) -> None:
    origin.answers["/b.png"] = ok(encoded(seed=2))
    expected = (await post(app, *(in_base64(encoded(seed=seed)) for seed in (0, 1, 2)))).json()["results"]
    uri = f"data:image/png;base64,{in_base64(encoded(seed=1))}"
    answer = await post(app, URL, uri, f"https://{HOST}/b.png", in_base64(encoded()))
    assert answer.status_code == 200
    assert answer.json()["results"] == [*expected, expected[0]]
    assert timings(answer)["fetch"] > 0
    assert (await post(app, URL)).json()["results"] == expected[:1]
    assert app.service.body_budget.total == 0


async def test_lines_have_them_too(app: Running, origin: Origin) -> None:
    answer = await post(app, URL, "https://elsewhere.example/a", in_base64(encoded()), headers=NDJSON)
    *found, last = map(json.loads, answer.text.splitlines())
    assert last["succeeded"] == 2
    by_place = {line["image"]: line for line in found}
    assert by_place[0]["predictions"] == by_place[2]["predictions"]
    assert by_place[1]["error"]["code"] == "url_not_allowed"


async def test_a_url_as_other_languages_write_it(app: Running, origin: Origin) -> None:
    origin.answers["/a.png?x=1&y=2"] = ok(encoded())
    body = rb'{"images": ["https:\/\/%b\/a.png?x=1\u0026y=2"]}' % HOST.encode()
    assert (await app.classify(body, headers={"content-type": "application/json"})).status_code == 200


async def test_off_by_default(module_app: Running, origin: Origin) -> None:
    app = module_app
    app.begin_test()
    assert app.service.settings.fetch_hosts == "off"
    async with one_reason(app, "url_not_allowed"):
        answer = await post(app, URL)
    check_error(answer, 400, "url_not_allowed", "--fetch-hosts")
    data = await post(app, f"data:image/png;base64,{in_base64(encoded())}", URL)
    assert data.status_code == 200
    assert [list(result) for result in data.json()["results"]] == [["predictions"], ["error"]]
    assert timings(data)["fetch"] == 0
    assert origin.connections == 0


async def test_the_setting_names_the_hosts(running: Start) -> None:
    async with running(settings={"fetch_hosts": f"{HOST},http://{PLAIN}"}) as app:
        fetcher = app.service.fetched_images._fetcher
        allowed = [fetcher.target_of(f"{url}/a") is not None for url in (f"https://{HOST}", f"http://{PLAIN}")]
        assert allowed == [True, True]
        assert fetcher.target_of(f"https://{OTHER}/a") is None


async def test_tricks_are_refused_with_nothing_asked(app: Running, origin: Origin) -> None:
    answer = await post(app, *TRICKS, in_base64(encoded()))
    *refused, good = answer.json()["results"]
    assert good["predictions"]
    messages = {json.dumps(result["error"]).replace(f"image {at}: ", "") for at, result in enumerate(refused)}
    assert len(refused) == len(TRICKS)
    assert len(messages) == 1  # the same for every cause
    assert '"code": "url_not_allowed"' in messages.pop()
    assert (origin.connections, origin.looked_up) == (0, {})


async def test_a_bad_one_leaves_its_neighbours_and_tells_nothing(app: Running, origin: Origin) -> None:
    origin.answers |= {
        "/missing": ok(b"the secret", status="404 Not Found"),
        "/away": redirect("http://169.254.169.254/"),
        "/large": ok(bytes(app.service.settings.max_image_bytes + 1)),
        "/gzip": ok(encoded(), "Content-Encoding: gzip"),
    }
    bad = [f"https://{HOST}{path}" for path in ("/missing", "/away", "/large", "/gzip")]
    [good] = (await post(app, URL)).json()["results"]
    answer = await post(app, *bad, URL, in_base64(encoded()))
    *failed, last, inline = answer.json()["results"]
    assert last == inline == good
    expected = fetch_failed(app.service.settings.max_image_bytes).message
    for place, result in enumerate(failed):
        assert result == {"error": {"code": "fetch_failed", "message": f"image {place}: {expected}"}}
    async with one_reason(app, "fetch_failed"):
        check_error(await post(app, bad[0]), 502, "fetch_failed", expected)
    assert app.service.body_budget.total == 0


async def test_what_arrives_is_checked_as_any_image(app: Running, origin: Origin) -> None:
    pixels = np.zeros((2, 5, 4, 3), np.uint8)
    origin.answers |= {
        "/text": ok(b"<html>"),
        "/empty": ok(b""),
        "/2.npy": ok(npy(pixels)),
        "/1.npy": ok(npy(pixels[:1])),
    }
    answer = await post(app, *(f"https://{HOST}/{name}" for name in ("text", "empty", "2.npy", "1.npy")))
    *refused, one = answer.json()["results"]
    assert [result["error"]["code"] for result in refused] == ["unsupported_format", "empty", "bad_request"]
    assert "2 images" in refused[2]["error"]["message"]
    assert one["predictions"]


async def test_a_slow_host_costs_only_its_own_image(app: Running, origin: Origin, monkeypatch: Any) -> None:
    """It has a share of the request's time: the rest is for those that are there."""
    gone = asyncio.Event()

    async def stall(writer: asyncio.StreamWriter) -> None:
        await gone.wait()

    origin.answers["/slow"] = stall
    monkeypatch.setattr(fetched_images, "SHARE_OF_TIME", 1.5 / HANG_SECONDS)
    app.service.fetched_images._fetcher._seconds = HANG_SECONDS
    answer = await post(*(app, f"https://{HOST}/slow", URL, in_base64(encoded())))
    slow, fetched, inline = answer.json()["results"]
    assert slow["error"]["code"] == "fetch_failed"
    assert fetched == inline
    gone.set()


async def test_no_fetch_leaves_a_cycle(app: Running, origin: Origin) -> None:
    def resolver(host: str, port: int) -> list[tuple[str, int]]:
        if host == OTHER:
            raise OSError(f"{host} is not known")
        return origin.resolve(host, port)

    origin.answers |= {
        "/missing": ok(b"", status="404 Not Found"),
        "/broken": b"no HTTP",
        "/away": redirect("http://a"),
    }
    app.service.fetched_images._fetcher._resolver = resolver
    urls = [
        URL,
        "https://elsewhere.example/",
        f"https://{OTHER}/",
        *(f"https://{HOST}/{path}" for path in ("missing", "broken", "away")),
    ]
    for first in (True, False):  # the first time imports and fills caches
        with contextlib.nullcontext(Counter[str]()) if first else counted_cycles() as left:
            for _ in range(3):
                await post(app, *urls)
            await until(lambda: not origin.open)
    assert not left


async def test_bodies_count_as_held(app: Running, origin: Origin) -> None:
    image = encoded(size=(300, 200))
    origin.answers["/big"] = ok(image)
    most = most_held(app)
    assert (await post(app, f"https://{HOST}/big")).status_code == 200
    assert most() > len(image)
    assert app.service.body_budget.total == 0


async def test_a_client_that_leaves_ends_its_fetches(app: Running, origin: Origin, monkeypatch: Any) -> None:
    monkeypatch.setattr("milkweed.server.http.disconnect.WATCH_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(fetched_images, "SHARE_OF_TIME", 10.0)  # nothing else ends them
    app.service.fetched_images._fetcher._seconds = HANG_SECONDS

    async def stall(writer: asyncio.StreamWriter) -> None:
        await until(writer.transport.is_closing)

    origin.answers["/slow"] = stall
    body = json.dumps({"images": [f"https://{HOST}/slow"]}).encode()
    call = RawCall(app, body, headers={"content-type": "application/json"})
    await until(lambda: origin.open)
    call.leave.set()
    await call.task
    await until(lambda: not origin.open)
    assert app.value("requests_cancelled_total", stage="wait") == 1
    assert app.service.body_budget.total == 0


async def test_so_many_at_a_time_of_one_request(app: Running, origin: Origin, monkeypatch: Any) -> None:
    monkeypatch.setattr(fetched_images, "FETCHES_OF_REQUEST", 2)
    gate = asyncio.Event()

    async def hold(writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(ok(encoded()))

    origin.answers["/held"] = hold
    task = asyncio.create_task(post(app, *[f"https://{HOST}/held"] * 5))
    await until(lambda: origin.open == 2)
    assert (await post(app, URL)).status_code == 200  # another one's, in whose time a third would have come
    assert origin.looked_up[HOST] == 3
    gate.set()
    assert [list(result) for result in (await task).json()["results"]] == [["predictions"]] * 5


async def test_images_beyond_a_rate_are_not_fetched(app: Running, origin: Origin, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise ServiceError("rate_limited", "too many", retry_after_seconds=1)

    monkeypatch.setattr(app.app.state.auth, "charge_images", refuse)
    assert (await post(app, URL)).status_code == 429
    assert origin.connections == 0


async def test_the_inference_protocol_takes_no_urls(app: Running, origin: Origin) -> None:
    body = as_tensor(b"")
    body["inputs"][0]["data"] = [URL]
    answer = await app.client.post("/v2/models/held/infer", json=body)
    assert answer.status_code == 400
    assert origin.connections == 0
