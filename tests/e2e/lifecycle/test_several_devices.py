"""Several devices behind a real socket, with CPU engines in their place: the same answers, and no request lost."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ..test_serving import jpeg

IMAGES = 12
CLIENTS = 4

# A picture of this size ends the thread of whichever engine decodes it, as far as Python lets a thread be ended.
KILLER = """
from milkweed.loaders.decode.cpu import CpuLoader
load = CpuLoader.load
def killing(self, items, infos=None, sources=None):
    if any(info is not None and info.width == 77 for info in infos or ()):
        raise SystemExit("killed")
    return load(self, items, infos, sources)
CpuLoader.load = killing
"""


def results(url: str, image: bytes) -> str:
    answer = httpx.post(url + "/classify", content=image, timeout=60)
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json()["results"])


class Load:
    """Clients that ask in a loop until told to stop; what they got."""

    def __init__(self, url: str, images: list[bytes]) -> None:
        self.statuses: Counter[int] = Counter()
        self.answers: set[tuple[int, str]] = set()
        self._url, self._images = url, images
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(place,)) for place in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def wait(self, answers: int) -> None:
        """Until there are so many more."""
        wanted = self.statuses.total() + answers
        while self.statuses.total() < wanted:
            assert all(thread.is_alive() for thread in self._threads)
            self._stop.wait(0.01)

    def _ask(self, place: int) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                place = (place + 1) % len(self._images)
                answer = client.post(self._url + "/classify", content=self._images[place])
                with self._lock:
                    self.statuses[answer.status_code] += 1
                    self.answers.add((place, json.dumps(answer.json().get("results"))))


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    return [jpeg(seed) for seed in range(IMAGES)]


@pytest.fixture(scope="module")
def alone(serving: Any, images: list[bytes]) -> set[tuple[int, str]]:
    """What one device answers."""
    with serving(device="cpu") as server:
        url = server.wait_ready()
        return {(place, results(url, image)) for place, image in enumerate(images)}


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_both_devices_work_and_answer_as_one_does(
    serving: Any, images: list[bytes], alone: set[tuple[int, str]], overlap: str
) -> None:
    with serving(device="cpu,cpu", overlap=overlap) as server:
        url = server.wait_ready()
        assert "device cpu:0,cpu:1" in server.line
        with Load(url, images) as load:
            load.wait(200)
        assert set(load.statuses) == {200}
        assert load.answers == alone  # to the last digit
        for device in ("cpu:0", "cpu:1"):
            assert server.metric(f'milkweed_engine_busy_seconds_total{{device="{device}"}}') > 0
            assert server.metric(f'milkweed_engine_up{{device="{device}"}}') == 1
        [model] = httpx.get(url + "/v1/models").json()["models"]
        assert model["device"] == "cpu:0,cpu:1"
        server.terminate()
        assert server.exit() == 0


def test_killed_engines_cost_what_they_had_in_hand_and_the_last_one_ends_the_process(
    serving: Any, images: list[bytes]
) -> None:
    killer = jpeg(0, 77)
    with serving(device="cpu,cpu", prelude=KILLER, max_batch_size=1) as server:
        url = server.wait_ready()

        def restarts() -> float:
            return sum(server.metric(f'milkweed_engine_restarts_total{{device="cpu:{place}"}}') for place in range(2))

        def up() -> list[float]:
            return [server.metric(f'milkweed_engine_up{{device="cpu:{place}"}}') for place in range(2)]

        kills = 0
        with Load(url, images) as load:
            load.wait(20)
            while sum(up()) == 2 and kills < 8:
                assert httpx.post(url + "/classify", content=killer, timeout=60).status_code == 500
                kills += 1
                load.wait(20)
            assert sum(up()) == 1
            assert httpx.get(url + "/livez").status_code == 503
            assert httpx.get(url + "/readyz").status_code == 200
            load.wait(50)
        assert set(load.statuses) == {200}  # one image a batch: nobody else was in hand
        assert restarts() == kills - 1
        server.wait_log("only a restart brings it back")
        while server.process.poll() is None and kills < 9:
            try:
                httpx.post(url + "/classify", content=killer, timeout=60)
            except httpx.HTTPError:
                break
            kills += 1
        assert server.exit() == 1


@pytest.mark.parametrize(
    ("device", "line", "code"),
    [
        ("cpu,cuda:9", "device = 'cpu,cuda:9' mixes CPU and GPUs", 2),
        ("cuda:0,cuda:0", "device = 'cuda:0,cuda:0' names cuda:0 twice", 2),
        ("cpu,,", "--device = 'cpu,,': string should match pattern", 2),
        ("cuda:8,cuda:9", "device cuda:8: this machine has", 1),
    ],
)
def test_devices_that_cannot_be_are_one_clear_line(serving: Any, device: str, line: str, code: int) -> None:
    with serving(device=device) as server:
        assert server.exit() == code
        [said] = [each for each in server.log if "error" in each]
        assert line in said


def test_many_at_once_over_four_engines(serving: Any, images: list[bytes], alone: set[tuple[int, str]]) -> None:
    with serving(device="cpu,cpu,cpu,cpu") as server:
        url = server.wait_ready()
        with ThreadPoolExecutor(16) as pool:
            found = set(enumerate(pool.map(lambda image: results(url, image), images)))
        assert found == alone
