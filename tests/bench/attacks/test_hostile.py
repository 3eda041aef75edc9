"""The attacks' bodies are what they say, and what a crowd sends arrives."""

import io

import numpy as np
import pytest
from PIL import Image

from milkweed.bench.attacks import payloads
from milkweed.bench.attacks.hostile import ATTACKS, Target
from milkweed.bench.load.requests import MULTIPART
from milkweed.server.http.payload import read_payload

from ...support.fake_server import OK, Fake, fake_server


async def ok(number: int, body: bytes) -> bytes:
    return OK


def target_of(fake: Fake) -> Target:
    return Target("127.0.0.1", fake.port, fake.port, fake.port)


def test_a_slow_tiff_is_a_picture_of_many_scans() -> None:
    first, second = read_payload(payloads.slow_tiffs(2, side=64, scans=5), "multipart", MULTIPART.encode()).images(9)
    assert isinstance(first, bytes)
    assert first == second
    assert first.count(b"\xff\xda") == payloads.slow_tiffs(1, side=64, scans=0).count(b"\xff\xda") + 5
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(first))), np.full((64, 64), 128))


@pytest.mark.parametrize(("samples", "mode"), [(1, "L"), (3, "RGB")])
def test_a_tile_is_larger_than_its_picture(samples: int, mode: str) -> None:
    image = Image.open(io.BytesIO(payloads.tile(640, samples)))
    assert (image.size, image.mode, image.tag_v2[322]) == ((100, 100), mode, 640)  # type: ignore[attr-defined]


def test_a_crowd_sends_and_others_ask_beside_it() -> None:
    with fake_server(ok) as fake:
        attack = ATTACKS["no-bodies"]
        assert attack.run(target_of(fake), attack.body()) == {"image 200": 3, "livez 200": 1, "metrics 200": 1}
        assert fake.connections == 64 + 5


def test_odd_heads_are_told_apart_by_the_first_status() -> None:
    async def judge(number: int, body: bytes) -> bytes:
        return OK if number else OK.replace(b"200 OK", b"400 No")

    with fake_server(judge) as fake:
        found = ATTACKS["odd-heads"].run(target_of(fake), b"image")
        assert found == {"two types 400": 1, "h2c 200": 1, "1.0, Expect 200": 1}
        assert all(b"Content-Length: 5\r\n" in head for head in fake.heads)
