"""HTTP in several processes: they answer as one does, and each of them may be killed."""

import io
import json
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from milkweed.bench.serving.ports import free_port
from milkweed.server.security.keys import key_block
from milkweed.server.workers.arena import ARENA_BYTES

from .load import BEFORE_SECONDS, seen_while

NOTICED_SECONDS = 2.0
BACK_SECONDS = 60.0


def jpeg(seed: int = 0, side: int = 48) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


IMAGES = [jpeg(seed) for seed in range(8)]

# What a client can see of a process that is killed.
CONNECTION_LOST = {(0, "ReadError"), (0, "RemoteProtocolError"), (0, "WriteError"), (0, "ConnectError")}


def children(server: Any, word: str) -> list[psutil.Process]:
    """Of the supervisor, those that run this module."""
    found = psutil.Process(server.process.pid).children()
    return [child for child in found if any(word in part for part in child.cmdline())]


def of_worker(server: Any, client: httpx.Client) -> psutil.Process:
    """Which worker a client's open connection is to: the one that holds the other end."""
    client.get(server.url + "/livez")
    [ours] = [
        c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == httpx.URL(server.url).port
    ]
    return next(
        child
        for child in children(server, "workers.worker")
        if any(c.raddr and c.raddr.port == ours.laddr.port for c in child.net_connections("tcp"))
    )


def wait_back(url: str) -> float:
    """Until it is ready; how many seconds that took."""
    began = time.monotonic()
    while time.monotonic() - began < BACK_SECONDS:
        try:
            if httpx.get(url + "/readyz").status_code == 200:
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not ready within {BACK_SECONDS} s")


# A server takes seconds to start: each of these three serves several tests, the last of which ends it.


@pytest.fixture(scope="module")
def workers(serving: Any) -> Iterator[Any]:
    """A server with two workers."""
    with serving(http_workers=2, drain_grace_seconds=0.5) as server:
        server.wait_ready()
        wait_back(server.url)
        yield server


@pytest.fixture(scope="module")
def strict(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One whose callers may ask ten times, and whose batches may take a second."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(key_block("a", "one") + "requests_per_second = 0.01\nrequest_burst = 10\n")
    with serving(http_workers=2, api_keys=path, engine_stall_seconds=1.0) as server:
        server.wait_ready()
        wait_back(server.url)
        yield server


@pytest.fixture(scope="module")
def reloading(serving: Any, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One with a repository at `repository` and an admin port at `admin`."""
    repository, port = tmp_path_factory.mktemp("models"), free_port()
    shutil.copytree(tiny_bundle, repository / "tiny" / "1")
    with serving({}, http_workers=2, repository=repository, admin_port=port, drain_grace_seconds=0.5) as server:
        server.wait_ready()
        wait_back(server.url)
        server.repository, server.admin = repository, f"http://127.0.0.1:{port}"
        yield server


def answers(url: str) -> list[Any]:
    """What a server says to every kind of request, without ids and times."""
    images = [jpeg(seed) for seed in range(5)] + [b"no image", jpeg(9)[:-400]]
    parts = [("files", (f"{place}.jpg", image, "image/jpeg")) for place, image in enumerate(images)]
    out: list[Any] = []
    with httpx.Client(base_url=url, timeout=30) as client:
        found = [client.post("/classify?top_k=3", content=image) for image in images]
        found.append(client.post("/classify", files=parts))
        found.append(client.post("/classify", files=parts, headers={"x-priority": "bulk", "x-model-version": "1"}))
        found.append(client.post("/classify", content=b""))
        found.append(client.post("/classify?model=none", content=images[0]))
        array = np.random.default_rng(1).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
        body = {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": array.shape, "data": array.tolist()}]}
        found.append(client.post("/v2/models/tiny/infer", json=body))
        found += [client.get(path) for path in ("/v2/models/tiny", "/v2/models/tiny/config", "/v2", "/readyz", "/no")]
        for answer in found:
            document = answer.json()
            document.pop("request_id", None)
            out.append((answer.status_code, document))
        lines = client.post("/classify", files=parts, headers={"accept": "application/x-ndjson"}).text.splitlines()
        *results, end = map(json.loads, lines)
        end.pop("request_id")
        out += [sorted(results, key=lambda line: line["image"]), end]
    return out


def test_answers_are_those_of_one_process(workers: Any, server: Any) -> None:
    assert answers(workers.url) == answers(server.url)


def test_every_worker_has_the_same_page(workers: Any) -> None:
    seen, tags = set(), set()
    while len(seen) < 2:
        with httpx.Client(base_url=workers.url) as client:
            seen.add(of_worker(workers, client).pid)
            tags.add((client.get("/").headers["etag"], client.get("/page/main.js").headers["etag"]))
            assert client.get("/", headers={"if-none-match": min(tags)[0]}).status_code == 304
    assert len(tags) == 1


def test_metrics_of_all_processes_are_in_one_place(workers: Any) -> None:
    ok = 'milkweed_images_total{model="tiny",outcome="ok"}'
    refused = 'milkweed_requests_rejected_total{reason="unsupported_media"}'
    before = workers.metric(ok), workers.metric(refused), workers.metric('milkweed_batch_size_sum{model="tiny"}')
    used = set()
    for seed in range(12):
        with httpx.Client() as client:  # a connection each: the kernel deals them out
            assert client.post(workers.url + "/classify", content=jpeg(seed)).status_code == 200
            assert client.post(workers.url + "/classify", content=b"no image").status_code == 415
            used.add(of_worker(workers, client).pid)
    assert len(used) == 2
    assert workers.metric(ok) == before[0] + 12
    assert workers.metric(refused) == before[1] + 12
    assert workers.metric('milkweed_batch_size_sum{model="tiny"}') == before[2] + 12
    assert workers.metric("milkweed_http_workers") == 2
    statistics = httpx.get(workers.url + "/v2/models/tiny/stats").json()["model_stats"][0]
    assert statistics["inference_count"] == workers.metric(ok)


def test_workers_are_small(workers: Any) -> None:
    for child in children(workers, "workers.worker"):
        assert not any("libtorch" in mapped.path for mapped in child.memory_maps())
        assert child.memory_info().rss < 150e6


def test_a_request_that_its_client_leaves_is_dropped(workers: Any) -> None:
    def cancelled() -> float:
        return sum(workers.metric(f'milkweed_requests_cancelled_total{{stage="{at}"}}') for at in ("receive", "wait"))

    before = cancelled()
    image = jpeg(0, 2800)
    parts = [("files", (f"{place}.jpg", image, "image/jpeg")) for place in range(10)]
    assert len(parts) * len(image) > ARENA_BYTES
    with httpx.Client(timeout=httpx.Timeout(20, read=0.05)) as client, pytest.raises(httpx.ReadTimeout):
        client.post(workers.url + "/classify", files=parts)
    while cancelled() == before:
        time.sleep(0.02)
    while workers.metric('milkweed_queue_depth_images{model="tiny"}'):
        time.sleep(0.02)
    answer = httpx.post(workers.url + "/classify", files=parts, timeout=30)
    assert [len(result["predictions"]) for result in answer.json()["results"]] == [5] * 10


def test_a_killed_worker_loses_what_it_held_and_comes_back(workers: Any) -> None:
    ok = 'milkweed_images_total{model="tiny",outcome="ok"}'
    before = workers.metric(ok)
    time.sleep(1.5)  # a worker reports once a second: what it has counted by now lasts
    seen = seen_while(workers.url, IMAGES, 3.0, children(workers, "workers.worker")[0].kill)
    lost = [each for each in seen if each[1] != 200]
    assert {(status, code) for _, status, code in lost} <= CONNECTION_LOST
    assert len(lost) <= len(IMAGES)  # of each client one at most
    last_lost = max((at for at, *_ in lost), default=0.0)  # it may have held nothing
    assert any(status == 200 and at > last_lost for at, status, _ in seen)
    workers.wait_log("HTTP worker 0 ended with SIGKILL and is started again")
    while workers.metric("milkweed_http_workers") != 2:
        time.sleep(0.05)
    assert workers.metric(ok) >= before
    restarts = [workers.metric(f'milkweed_http_worker_restarts_total{{process="http-{place}"}}') for place in (0, 1)]
    assert restarts == [1, 0]
    assert len(children(workers, "workers.worker")) == 2


def test_a_killed_engine_is_told_to_who_waits_and_comes_back(workers: Any) -> None:
    with httpx.Client(limits=httpx.Limits(keepalive_expiry=60)) as client:  # connections to the workers stay
        assert client.get(workers.url + "/readyz").status_code == 200
        connection = of_worker(workers, client)
        [engine] = children(workers, "engine_process")
        began = time.monotonic()
        seen = seen_while(workers.url, IMAGES, 3.0, engine.kill)
        lost = [each for each in seen if each[1] != 200]
        assert lost
        assert {(status, code) for _, status, code in lost} == {(503, "not_ready")}
        assert min(at for at, *_ in lost) - began < BEFORE_SECONDS + NOTICED_SECONDS
        wait_back(workers.url)
        assert client.post(workers.url + "/classify", content=jpeg()).status_code == 200
        assert of_worker(workers, client) == connection
    workers.wait_log("the engine's process ended with SIGKILL and is started again")


def end_under_load(server: Any, number: signal.Signals) -> set[tuple[int, str]]:
    """End a server; what callers were told but 200."""
    processes = psutil.Process(server.process.pid).children()
    assert len(processes) == 3
    seen = seen_while(server.url, IMAGES, 1.5, lambda: server.terminate(number))
    assert server.exit() == 0
    assert not [process for process in processes if process.is_running()]
    said = {(status, code) for _, status, code in seen}
    assert (200, "") in said
    return said - {(200, "")}


def test_sigterm_ends_all_processes_and_loses_no_request(workers: Any) -> None:
    assert end_under_load(workers, signal.SIGTERM) <= {(0, "ConnectError")}  # who comes later finds nobody


def test_what_a_caller_may_ask_holds_for_all_workers_together(strict: Any) -> None:
    statuses, used = [], set()
    for _ in range(16):
        with httpx.Client(headers={"x-api-key": "one"}) as client:
            used.add(of_worker(strict, client).pid)
            statuses.append(client.get(strict.url + "/v1/models").status_code)
    assert len(used) == 2
    assert statuses == [200] * 10 + [429] * 6


def test_an_engine_that_hangs_is_noticed(strict: Any) -> None:
    [engine] = children(strict, "engine_process")
    engine.suspend()
    began = time.monotonic()
    while httpx.get(strict.url + "/livez").status_code == 200:
        assert time.monotonic() - began < 1.0 + NOTICED_SECONDS
        time.sleep(0.02)
    engine.resume()
    while httpx.get(strict.url + "/livez").status_code != 200:
        time.sleep(0.02)


def test_children_end_with_a_supervisor_that_is_killed(strict: Any) -> None:
    processes = psutil.Process(strict.process.pid).children()
    assert len(processes) == 3
    strict.process.kill()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive


def test_a_new_version_reaches_all_workers_and_the_old_one_goes(reloading: Any, tiny_bundle: Path) -> None:
    shutil.copytree(tiny_bundle, reloading.repository / "tiny" / "2")

    async def reload() -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(f"{reloading.admin}/v1/models/tiny/load")
            assert answer.status_code == 200, answer.text

    seen = seen_while(reloading.url, IMAGES[:4], 2.0, reload)
    assert {(status, code) for _, status, code in seen} == {(200, "")}
    for _ in range(8):
        [model] = httpx.get(reloading.url + "/v1/models").json()["models"]
        assert model["number"] == "2"
    reloading.wait_log("a model was let go")


def test_sigint_ends_all_processes(reloading: Any) -> None:
    # at a terminal nobody waits for who sends requests here to hear of it
    assert {status for status, _ in end_under_load(reloading, signal.SIGINT)} <= {0, 503}


def test_what_stops_the_start_is_one_line(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle, broken)
    (broken / "model.safetensors").write_bytes(b"no")
    with serving({"broken": broken}, http_workers=1) as server:
        assert server.exit() == 1
        lines = [line for line in server.log if not line.startswith("{")]
        assert len(lines) == 1
        assert re.match(r"milkweed: error: bundle .*: model\.safetensors", lines[0])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(http_workers=2, port=port) as server:
            assert server.exit() == 1
            assert server.log == [f"milkweed: error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"]
