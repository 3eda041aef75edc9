"""Several devices behind a real socket, with CPU engines in their place, give the answers of one."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ...support.server_parts import encoded
from ...support.waiting import HANG_SECONDS


@pytest.mark.slow
def test_two_devices_work_and_answer_as_one_does(serving: Any, server: Any) -> None:
    images = [encoded("JPEG", seed=seed, size=(64, 64)) for seed in range(12)] * 10

    def results(url: str) -> list[str]:
        with httpx.Client(timeout=HANG_SECONDS) as client, ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda image: client.post(url + "/classify", content=image), images)
            return [json.dumps(answer.json()["results"]) for answer in answers]

    with serving(device="cpu,cpu") as two:
        url = two.wait_ready()
        assert "device cpu:0,cpu:1" in two.line
        assert results(url) == results(server.url)  # to the last digit
        for device in ("cpu:0", "cpu:1"):
            assert two.metric(f'milkweed_engine_busy_seconds_total{{device="{device}"}}') > 0
        two.terminate()
        assert two.exit() == 0
