"""A picture takes the memory that its own pixels need, and large ones take turns."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from milkweed.loaders import InputError
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import MEMORY_BYTES, Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded
from .conftest import crop, idle_child
from .test_bombs import tile


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_tiles_as_they_are_written_may_be_larger_than_a_small_picture(side: int, sandbox: Sandbox) -> None:
    assert crop(sandbox, tile(side, 40)) == crop(sandbox, encoded(Image.new("L", (40, 40)), "TIFF"))


@pytest.mark.parametrize(("format", "size"), [("AVIF", (3000, 2400)), ("JPEG2000", (2000, 1500))])
def test_large_pictures_have_the_memory_that_their_format_takes(
    format: str, size: tuple[int, int], sandbox: Sandbox
) -> None:
    """Larger ones, and other formats, are slow cases of `test_bombs`."""
    options = {"speed": 10, "subsampling": "4:4:4"} if format == "AVIF" else {}
    assert crop(sandbox, encoded(Image.new("RGBA", size, (9, 9, 9, 100)), format, **options))


def test_a_child_gets_the_same_memory_after_a_large_picture(sandbox: Sandbox, body: bytes) -> None:
    first = crop(sandbox, body)
    child = idle_child(sandbox)
    crop(sandbox, encoded(Image.new("RGB", (4000, 3000)), "TIFF", compression="tiff_lzw"))
    assert crop(sandbox, body) == first
    with pytest.raises(InputError, match="truncated, corrupt, or it takes more than"):
        crop(sandbox, tile(16_000))
    assert crop(sandbox, body) == first
    assert idle_child(sandbox) is child


def test_large_pictures_take_turns(sandbox: Sandbox, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, waits, released, order = crop(sandbox, body), threading.Event(), [], []
    acquire, send = sandbox._megabytes.acquire, Child.send
    monkeypatch.setattr(sandbox._megabytes, "acquire", lambda: waits.set() or acquire())
    with ThreadPoolExecutor(1) as pool:
        with sandbox._memory((MEMORY_BYTES >> 20) - 1):
            waits.clear()
            monkeypatch.setattr(Child, "send", lambda *a: order.append(bool(released)) or send(*a))
            asked = pool.submit(crop, sandbox, body)
            assert waits.wait(HANG_SECONDS)
            released.append(True)
        assert asked.result(60) == first
    assert order == [False, True]  # the body before, what is wanted of it after the memory was free
    with sandbox._memory(MEMORY_BYTES >> 20):  # all was given back
        pass
