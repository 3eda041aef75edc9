"""A child that dies, hangs, takes too much, sends nonsense or does not start costs its image and nothing else."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders import CpuLoader, PillowLoader
from milkweed.loaders.errors import DecoderLostError, LoaderError
from milkweed.loaders.sandbox import child as child_module
from milkweed.loaders.sandbox.child import FOUND, MADE
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import ANSWER_SECONDS, Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded, picture
from .conftest import SPEC, crop, idle_child, refusal

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)  # nohup has SIGHUP ignored
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGSYS)


@pytest.mark.parametrize("number", [*FROM_OUTSIDE, *CRASHES])
def test_an_image_whose_child_ends_gets_another_unless_it_may_be_to_blame(
    body: bytes, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    first = crop(sandbox, body)
    child = idle_child(sandbox)
    ending_at_work(monkeypatch, number, times=1)
    if number in FROM_OUTSIDE:
        assert crop(sandbox, body) == first
        assert (sandbox.images, sandbox.deaths) == ({"ok": 2}, {"killed": 1})
    else:
        assert refusal(sandbox, body).message == "TIFF cannot be decoded: its decoder crashed"
        assert crop(sandbox, body) == first
        assert (sandbox.images, sandbox.deaths) == ({"ok": 2, "died": 1}, {"crash": 1})
    assert idle_child(sandbox) is not child


def test_an_image_whose_children_are_killed_is_alone_and_not_called_undecodable(
    body: bytes, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = CpuLoader(SPEC, num_threads=1, sandbox=sandbox)
    good = [encoded(picture(60, 50, seed), "PNG") for seed in (1, 2)]
    alone = loader.load([*good, body]).pixels
    ending_at_work(monkeypatch, signal.SIGKILL, times=2)
    answer = loader.load([good[0], body, good[1]])
    assert isinstance(answer.errors[1], DecoderLostError)
    assert answer.errors[1].message == "TIFF was not decoded: its decoder was killed from outside, twice"
    assert np.array_equal(answer.pixels, alone[:2])
    assert np.array_equal(loader.load([body]).pixels, alone[2:])
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2, "unavailable": 1}, {"killed": 2})


def ending_at_work(patch: pytest.MonkeyPatch, number: signal.Signals, times: int) -> None:
    """End so many children by a signal, each when it has been sent its image."""
    send, left = Child.send, [number] * times

    def sending(child: Child, *parts: bytes) -> None:
        if len(parts) == 2 and left:
            os.kill(child.process.pid, signal.SIGSTOP)  # so that it is at work when it dies
            send(child, *parts)
            os.kill(child.process.pid, left.pop())
            os.kill(child.process.pid, signal.SIGCONT)
        else:
            send(child, *parts)

    patch.setattr(Child, "send", sending)


def test_a_child_that_died_while_it_waited_costs_no_image(sandbox: Sandbox, body: bytes) -> None:
    first = crop(sandbox, body)
    child = idle_child(sandbox)
    child.process.kill()
    child.process.wait(HANG_SECONDS)
    assert crop(sandbox, body) == first
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2}, {})


@pytest.mark.parametrize("side", [70, 900])  # the body of the larger is more than a pipe holds, so nobody reads it
def test_a_child_that_is_stopped_is_late_and_its_image_gets_another(side: int) -> None:
    sandbox = Sandbox()
    body = encoded(Image.new("RGB", (side, side)), "BMP")
    first = crop(sandbox, body)
    child = idle_child(sandbox)
    os.kill(child.process.pid, signal.SIGSTOP)
    sandbox.answer_seconds, start = 0.2, Child.__init__

    def patient(self: Child, *given: Any) -> None:
        sandbox.answer_seconds = HANG_SECONDS  # only the first child is late
        start(self, *given[:2], HANG_SECONDS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "__init__", patient)
        assert crop(sandbox, body) == first
    assert child.process.returncode == -signal.SIGKILL
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2}, {"late": 1})
    sandbox.close()


def test_no_image_is_called_undecodable_because_all_children_are_stopped(
    sandbox: Sandbox, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    crop(sandbox, body)
    send = Child.send

    def stopping(child: Child, *parts: bytes) -> None:
        os.kill(child.process.pid, signal.SIGSTOP)
        child.deadline = time.monotonic() + 0.2
        send(child, *parts)

    monkeypatch.setattr(Child, "send", stopping)
    with pytest.raises(DecoderLostError, match=f"no answer within {HANG_SECONDS:g} s, twice"):
        crop(sandbox, body)
    assert (sandbox.images, sandbox.deaths) == ({"ok": 1, "unavailable": 1}, {"late": 2})


def test_cpu_time_is_limited_for_each_image_anew() -> None:
    sandbox = Sandbox(cpu_seconds=0.3)
    cheap, dear = encoded(picture(300, 300), "GIF"), b"P3 5000 4000 255\n" + b"7 " * 8_000_000
    crop(sandbox, cheap)
    child = idle_child(sandbox)
    clock = (~child.process.pid << 3) | 2  # the clock of that process's CPU time
    while time.clock_gettime(clock) < 0.5:
        crop(sandbox, cheap)
    assert idle_child(sandbox) is child  # several images together may take more
    assert refusal(sandbox, dear).message == "PPM cannot be decoded: it takes more than 0.3 s of CPU"
    assert sandbox.deaths == {"cpu": 1}
    crop(sandbox, cheap)
    sandbox.close()


def test_memory_is_limited() -> None:
    body = encoded(Image.new("RGB", (3000, 2000)), "GIF")
    small, enough = Sandbox(memory_bytes=10 << 20), Sandbox(memory_bytes=40 << 20)
    assert "takes more than 10 MB" in refusal(small, body).message
    tiny = encoded(Image.new("RGB", (10, 10)), "GIF")
    assert crop(small, tiny) == crop(enough, tiny)
    assert crop(enough, body)
    small.close()
    enough.close()


SOUND, PIXELS = FOUND.pack(True, b"RGB", 90, 70, 1, 1), bytes(32 * 32 * 3)
TALKER = """
import struct, sys
sys.stdout.buffer.write(b"R"); sys.stdout.flush()
size = struct.unpack("<8sQ", sys.stdin.buffer.read(16))[1]
sys.stdin.buffer.read(size)
for number, part in enumerate({parts!r}):
    if number:
        sys.stdin.buffer.read({want})
    sys.stdout.buffer.write(part); sys.stdout.flush()
{after}
"""


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes children of a program that sends these parts, whatever it is asked, and then ends, or waits for its end."""

    def answer(*parts: bytes, waits: bool = True) -> None:
        program = TALKER.format(parts=parts, want=child_module.WANT.size, after="sys.stdin.read()" if waits else "")
        script = tmp_path / "child.py"
        script.write_text(program)
        monkeypatch.setattr(child_module, "__file__", str(script))

    return answer


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([SOUND, MADE.pack(True, len(PIXELS) + 1) + PIXELS + b"0"], "nonsense"),
        ([SOUND, MADE.pack(True, len(PIXELS) - 3) + PIXELS[3:]], "nonsense"),
        ([FOUND.pack(True, b"R\nB", 90, 70, 1, 1)], "nonsense"),
        ([FOUND.pack(True, b"RGB", 90, 70, 9, 1)], "nonsense"),
        ([SOUND, MADE.pack(True, len(PIXELS)) + PIXELS[:100]], "crash"),
        ([], "crash"),
    ],
    ids=["a larger picture", "a smaller picture", "no mode", "no orientation", "less than announced", "nothing"],
)
def test_answers_that_are_none_are_a_death(
    parts: list[bytes],
    reason: str,
    body: bytes,
    sandbox: Sandbox,
    answering: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(*parts, waits=False)
    error, why = refusal(sandbox, body), {"nonsense": "gave no sound answer", "crash": "crashed"}[reason]
    assert (error.code, error.message) == ("undecodable", f"TIFF cannot be decoded: its decoder {why}")
    assert (sandbox.images, sandbox.deaths) == ({"died": 1}, {reason: 1})
    assert not sandbox.idle
    monkeypatch.undo()
    assert crop(sandbox, body)


@pytest.mark.parametrize(
    ("size", "code", "said"),
    [
        ((2**31, 2**31), "too_many_pixels", "side limit 16384 px"),
        ((5000, 4001), "too_many_pixels", "5000x4001 px: limit 20 megapixels for TIFF"),
        ((0, 5), "undecodable", ""),
    ],
)
def test_what_a_child_says_is_held_against_the_limits(
    size: tuple[int, int], code: str, said: str, body: bytes, sandbox: Sandbox, answering: Callable[..., None]
) -> None:
    answering(FOUND.pack(True, b"RGB", *size, 1, 1))
    sandbox.answer_seconds = ANSWER_SECONDS  # it waits, where it is asked for pixels
    error = refusal(sandbox, body)
    assert error.code == code
    assert said in error.message
    assert not sandbox.deaths


def test_who_says_more_than_asked_is_not_asked_again(
    body: bytes, sandbox: Sandbox, answering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left unread would otherwise be taken for the answer to the next image."""
    answering(SOUND, MADE.pack(True, len(PIXELS)) + PIXELS + SOUND)
    assert crop(sandbox, body) == PIXELS
    talking = idle_child(sandbox)
    monkeypatch.undo()
    sandbox.answer_seconds = ANSWER_SECONDS  # it would wait for good
    assert crop(sandbox, body) != PIXELS
    assert idle_child(sandbox) is not talking
    assert not sandbox.deaths


def test_one_that_cannot_be_started_is_no_images_fault(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "__file__", "/no/such/child.py")
    for loader in (CpuLoader(SPEC), PillowLoader(SPEC)):
        with pytest.raises(LoaderError, match="did not start: exit status 2"):
            loader.load([body])
        loader.close()
