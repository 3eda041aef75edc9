"""Made-up and mangled HTTP, a little of it; `tests/fuzz/http_fuzz.py` does the same for as long as one likes."""

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ...fuzz import http_fuzz as fuzz


@pytest.fixture(scope="module")
def address(serving: Any) -> Iterator[tuple[str, int]]:
    """Where a server with little patience listens; afterwards it is alive, and has logged nothing bad."""
    little = {"header_timeout_ms": 200, "body_timeout_ms": 200, "body_min_bytes_per_second": 1_000_000}
    with serving(**little, formats="jpeg,png,bmp,gif") as server:
        host, port = server.wait_ready().removeprefix("http://").split(":")
        yield host, int(port)
        assert httpx.get(server.url + "/livez").status_code == 200
        server.terminate()
        assert server.exit() == 0
        assert [line for line in server.log if '"level": "info"' not in line] == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_whatever_is_sent_the_answer_is_one_that_may_be(address: tuple[str, int], seed: int) -> None:
    fuzz.check(fuzz.talk(address, fuzz.conversation(random.Random(seed))))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_or_answered(address: tuple[str, int], data: bytes) -> None:
    # Hypothesis draws constants of our sources too, of which some are requests that are answered and kept alive.
    assume(b"HTTP/1." not in data)
    end = b"\r\n\r\n"
    assert set(fuzz.check(fuzz.talk(address, [data, end, end]))) <= {400, 404, 405, 408, 431}
