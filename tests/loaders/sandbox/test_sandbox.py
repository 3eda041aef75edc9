"""The sandbox: who gets which answer, and what becomes of a child that dies, hangs or talks nonsense."""

import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders import CpuLoader, InputError, Limits, Loader, PillowLoader, PreprocessSpec, create_loader, inspect
from milkweed.loaders.errors import LoaderError
from milkweed.loaders.evaluation import PreparedImages
from milkweed.loaders.folder import read_levels
from milkweed.loaders.sandbox import child as child_module
from milkweed.loaders.sandbox import sandbox as sandbox_module
from milkweed.loaders.sandbox.child import FOUND, MADE
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import Sandbox
from milkweed.loaders.training import Augmentation, TrainingImages

SPEC = PreprocessSpec(size=32)

Picture = Callable[..., Image.Image]
Encoded = Callable[..., bytes]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close()


@pytest.fixture
def body(picture: Picture, encoded: Encoded) -> bytes:
    return encoded(picture(90, 70), "TIFF")


def crop(sandbox: Sandbox, body: bytes, spec: PreprocessSpec = SPEC) -> bytes:
    return sandbox.crop(body, inspect(body, sandbox.limits), spec)[0]


def refusal(sandbox: Sandbox, body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        crop(sandbox, body)
    assert "\n" not in caught.value.message
    return caught.value


def pid_of_the_idle_one(sandbox: Sandbox) -> int:
    (child,) = sandbox._idle
    return child.process.pid


def test_a_child_is_started_when_needed_and_then_kept(sandbox: Sandbox, body: bytes) -> None:
    assert not sandbox._idle
    first = crop(sandbox, body)
    pid = pid_of_the_idle_one(sandbox)
    assert crop(sandbox, body) == first
    assert pid_of_the_idle_one(sandbox) == pid
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2}, {})


@pytest.mark.parametrize("name", ["cpu", "pillow", "dali"])
def test_loaders_take_a_crop_in_place_of_the_image(
    name: str, sandbox: Sandbox, body: bytes, picture: Picture, encoded: Encoded
) -> None:
    if name == "dali":
        pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    loader: Loader = create_loader(name, SPEC, sandbox=sandbox)
    jpeg = encoded(picture(90, 70), "JPEG")
    wanted = loader.load([jpeg, body]).pixels
    levels, info = sandbox.crop(body, inspect(body), SPEC)
    assert (info.format, info.width, info.height, info.mode, info.cropped) == ("TIFF", 90, 70, "RGB", True)
    assert not info.sandboxed
    found = loader.load([jpeg, levels], [inspect(jpeg), info])
    assert found.ok == [0, 1]
    assert torch.equal(found.pixels, wanted)
    assert sandbox.images == {"ok": 2}
    with pytest.raises(LoaderError, match="the crop has 3072 bytes: the model takes 16x16 px of 3 bytes"):
        create_loader(name, PreprocessSpec(size=16), sandbox=sandbox).load([levels], [info])
    loader.close()
    assert crop(sandbox, body) == levels  # a sandbox that was given to a loader goes on


def test_loaders_that_were_given_none_end_their_own(body: bytes) -> None:
    for loader in (CpuLoader(SPEC), PillowLoader(SPEC)):
        assert loader.load([body]).ok == [0]
        (child,) = loader._sandbox._idle
        loader.close()
        assert child.process.returncode == -signal.SIGKILL


def test_formats_with_readers_of_our_own_start_no_child(
    picture: Picture, encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(sandbox_module, "Child", started)
    bodies = [encoded(picture(40, 30), format) for format in ("JPEG", "PNG", "WEBP", "NPY")]
    limits = Limits(formats=("JPEG", "PNG", "WEBP", "NPY"))
    for name in ("cpu", "pillow"):
        result = create_loader(name, SPEC, limits).load([*bodies, encoded(picture(40, 30), "GIF")])
        assert result.ok == [0, 1, 2, 3]
        assert result.errors[4].code == "unsupported_format"


@pytest.mark.parametrize(("orientation", "size"), [(1, (150, 90)), (6, (150, 90)), (3, (2000, 1100))])
def test_whole_pictures_are_upright(
    orientation: int, size: tuple[int, int], sandbox: Sandbox, picture: Picture, encoded: Encoded, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {"exif": exif, "quality": 100, "subsampling": "4:4:4", "speed": 10}
    (tmp_path / "a.avif").write_bytes(encoded(picture(*size), "AVIF", **turned))
    with Image.open(tmp_path / "a.avif") as image:
        stored = np.asarray(image.convert("RGB"))
    upright = {1: stored, 6: np.rot90(stored, -1), 3: np.rot90(stored, 2)}[orientation]
    assert np.array_equal(read_levels(tmp_path / "a.avif", SPEC, True, sandbox), upright)
    ignoring = replace(SPEC, orientation="ignore")
    assert np.array_equal(read_levels(tmp_path / "a.avif", ignoring, True, sandbox), stored)


def test_data_sets_read_rare_formats(picture: Picture, encoded: Encoded, tmp_path: Path) -> None:
    samples = [(tmp_path / f"{format}.img", place) for place, format in enumerate(("TIFF", "GIF", "PNG"))]
    for path, _ in samples:
        path.write_bytes(encoded(picture(60, 60).quantize(200), path.stem))
    (evaluated, _), *rest = PreparedImages(samples, SPEC, 3)
    wanted = PillowLoader(SPEC).load([path.read_bytes() for path, _ in samples]).pixels
    assert not rest
    torch.testing.assert_close(evaluated[:2], wanted[:2], rtol=0, atol=1e-6)
    made = []
    for workers in (0, 1):  # a worker is a fork of this process, with children of its own
        source = TrainingImages(samples, SPEC, Augmentation(), batch_size=3, workers=workers, cache_bytes=0)
        ((images, _),) = source.batches(0, 0)
        assert not source.skipped
        made.append(images)
    assert torch.equal(*made)


def test_refusals_by_the_parent_cost_no_child(
    sandbox: Sandbox, body: bytes, picture: Picture, encoded: Encoded
) -> None:
    crop(sandbox, body)
    pid = pid_of_the_idle_one(sandbox)
    small = Sandbox(Limits(max_pixels=6299))
    assert refusal(small, body).code == "too_many_pixels"
    assert refusal(small, body).message == "TIFF is 90x70 px: limit 0.006299 megapixels for TIFF"
    small.close()
    error = refusal(sandbox, encoded(Image.new("F", (8, 8)), "TIFF"))
    assert error.code == "unsupported_format"
    assert error.message == "TIFF of mode F is not accepted: expected 8 or 16 bit samples"
    assert refusal(sandbox, body[:60]).message == "TIFF header is broken or cut off"
    cut = refusal(sandbox, encoded(picture(90, 70), "BMP")[:-4000])
    assert cut.message == "BMP of 90x70 px cannot be decoded: truncated, corrupt, or it takes more than 268 MB"
    crop(sandbox, body)
    assert pid_of_the_idle_one(sandbox) == pid
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2, "refused": 3}, {})


@pytest.mark.parametrize(
    ("body", "limits", "said"),
    [
        (b"P5 5000 4001 255\n", Limits(), "PPM is 5000x4001 px: limit 20 megapixels for PPM"),
        (b"P5 16385 500 255\n", Limits(), "PPM is 16385x500 px: side limit 16384 px"),
        (b"P5 101 1 255\n", Limits(), "PPM is 101x1 px: aspect ratio limit 100:1"),
        (b"P5 300 200 255\n", Limits(max_pixels=50_000), "PPM is 300x200 px: limit 0.05 megapixels for PPM"),
    ],
)
def test_limits_are_named(body: bytes, limits: Limits, said: str) -> None:
    sandbox = Sandbox(limits)
    error = refusal(sandbox, body)
    assert (error.code, error.message) == ("too_many_pixels", said)
    sandbox.close()


def test_sizes_that_pillow_would_call_a_bomb_have_our_word(sandbox: Sandbox, encoded: Encoded) -> None:
    gif = encoded(Image.new("L", (1, 1)), "GIF")
    error = refusal(sandbox, gif[:6] + b"\xff\xff\xff\xff" + gif[10:])
    assert (error.code, error.message) == ("too_many_pixels", "GIF is 65535x65535 px: side limit 16384 px")


def test_a_child_that_is_killed_costs_its_image_alone(
    body: bytes, sandbox: Sandbox, picture: Picture, encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = CpuLoader(SPEC, num_threads=1, sandbox=sandbox)
    good = [encoded(picture(60, 50, seed), "PNG") for seed in (1, 2)]
    alone = loader.load([*good, body]).pixels
    pid = pid_of_the_idle_one(sandbox)
    os.kill(pid, signal.SIGSTOP)  # so that it is at work when it dies
    receive, sent = Child.receive, threading.Event()
    monkeypatch.setattr(Child, "receive", lambda child, size: sent.set() or receive(child, size))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(loader.load, [good[0], body, good[1]])
        assert sent.wait(10)
        os.kill(pid, signal.SIGKILL)
        answer = asked.result(10)
    assert answer.errors[1].code == "undecodable"
    assert answer.errors[1].message == "TIFF cannot be decoded: its decoder crashed"
    assert torch.equal(answer.pixels, alone[:2])
    assert torch.equal(loader.load([body]).pixels, alone[2:])
    assert pid_of_the_idle_one(sandbox) != pid
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2, "died": 1}, {"crash": 1})


def test_a_child_that_died_while_it_waited_costs_no_image(sandbox: Sandbox, body: bytes) -> None:
    first = crop(sandbox, body)
    (child,) = sandbox._idle
    child.process.kill()
    child.process.wait(10)
    assert crop(sandbox, body) == first
    assert sandbox.images == {"ok": 2}


def test_a_child_that_hangs_is_killed(body: bytes) -> None:
    sandbox = Sandbox(answer_seconds=10)
    first = crop(sandbox, body)
    (child,) = sandbox._idle
    os.kill(child.process.pid, signal.SIGSTOP)
    sandbox.answer_seconds = 0.2
    assert refusal(sandbox, body).message == "TIFF cannot be decoded: no answer within 0.2 s"
    assert child.process.returncode == -signal.SIGKILL
    sandbox.answer_seconds = 10
    assert crop(sandbox, body) == first
    assert sandbox.deaths == {"late": 1}
    sandbox.close()


def test_a_body_that_nobody_reads_is_late_too(encoded: Encoded) -> None:
    sandbox = Sandbox()
    large = encoded(Image.new("RGB", (900, 900)), "BMP")  # more than a pipe holds
    crop(sandbox, large)
    os.kill(pid_of_the_idle_one(sandbox), signal.SIGSTOP)
    sandbox.answer_seconds = 0.2
    assert "no answer within 0.2 s" in refusal(sandbox, large).message
    sandbox.close()


def test_cpu_time_is_limited_for_each_image_anew(picture: Picture, encoded: Encoded) -> None:
    sandbox = Sandbox(cpu_seconds=0.3)
    cheap, dear = encoded(picture(300, 300), "GIF"), b"P3 5000 4000 255\n" + b"7 " * 8_000_000
    crop(sandbox, cheap)
    pid = pid_of_the_idle_one(sandbox)
    clock = (~pid << 3) | 2  # of that process's CPU time
    while time.clock_gettime(clock) < 0.5:
        crop(sandbox, cheap)
    assert pid_of_the_idle_one(sandbox) == pid  # all together it may take more
    assert refusal(sandbox, dear).message == "PPM cannot be decoded: it takes more than 0.3 s of CPU"
    assert sandbox.deaths == {"cpu": 1}
    crop(sandbox, cheap)
    sandbox.close()


def test_memory_is_limited(encoded: Encoded) -> None:
    body = encoded(Image.new("RGB", (3000, 2000)), "GIF")
    small, enough = Sandbox(memory_bytes=10 << 20), Sandbox(memory_bytes=40 << 20)
    assert "takes more than 10 MB" in refusal(small, body).message
    tiny = encoded(Image.new("RGB", (10, 10)), "GIF")
    assert crop(small, tiny) == crop(enough, tiny)
    assert crop(enough, body)
    small.close()
    enough.close()


SOUND = FOUND.pack(True, b"RGB", 90, 70, 1, 1)
TALKERS = {
    "another size than asked for": [SOUND, MADE.pack(True, 32 * 32 * 3 + 1) + bytes(32 * 32 * 3 + 1)],
    "a mode that is none": [FOUND.pack(True, b"R\nB", 90, 70, 1, 1)],
    "an orientation that is none": [FOUND.pack(True, b"RGB", 90, 70, 9, 1)],
    "less than announced": [SOUND, MADE.pack(True, 32 * 32 * 3) + bytes(100)],
    "nothing": [],
}
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


def talker(tmp_path: Path, parts: list[bytes], after: str = "") -> str:
    """A program that says what it was told to, whatever it is asked."""
    script = tmp_path / "child.py"
    script.write_text(TALKER.format(parts=parts, want=child_module.WANT.size, after=after))
    return str(script)


@pytest.mark.parametrize("kind", TALKERS)
def test_answers_that_are_none_are_a_death(
    kind: str, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox()
    with monkeypatch.context() as patch:
        patch.setattr(child_module, "__file__", talker(tmp_path, TALKERS[kind]))
        error = refusal(sandbox, body)
    assert error.code == "undecodable"
    assert error.message in (
        "TIFF cannot be decoded: its decoder gave no sound answer",
        "TIFF cannot be decoded: its decoder crashed",
    )
    assert sandbox.images == {"died": 1}
    assert not sandbox._idle
    assert crop(sandbox, body)
    sandbox.close()


def test_what_a_child_says_is_held_against_the_limits(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox()
    for size, code in (((2**31, 2**31), "too_many_pixels"), ((0, 5), "undecodable")):
        parts = [FOUND.pack(True, b"RGB", *size, 1, 1)]
        monkeypatch.setattr(child_module, "__file__", talker(tmp_path, parts, after="sys.stdin.read()"))
        assert refusal(sandbox, body).code == code
        assert not sandbox.deaths
        sandbox._idle.pop().end()
    sandbox.close()


def test_who_says_more_than_asked_is_not_asked_again(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left over would be taken for the answer to the next image."""
    sandbox = Sandbox()
    parts = [SOUND, MADE.pack(True, 32 * 32 * 3) + bytes(32 * 32 * 3) + SOUND]
    with monkeypatch.context() as patch:
        patch.setattr(child_module, "__file__", talker(tmp_path, parts, after="sys.stdin.read()"))
        assert crop(sandbox, body) == bytes(32 * 32 * 3)
        talking = pid_of_the_idle_one(sandbox)
    assert crop(sandbox, body) != bytes(32 * 32 * 3)
    assert pid_of_the_idle_one(sandbox) != talking
    sandbox.close()


def test_many_threads_at_once(sandbox: Sandbox, picture: Picture, encoded: Encoded) -> None:
    formats = ("TIFF", "GIF", "BMP", "PPM", "AVIF")
    bodies = [encoded(picture(50 + seed, 60, seed), formats[seed % 5]) for seed in range(40)]
    wanted = [crop(sandbox, body) for body in bodies]
    assert len(sandbox._idle) == 1
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: crop(sandbox, body), bodies)) == wanted
    assert 1 < len(sandbox._idle) <= 8
    assert (sandbox.images, sandbox.deaths) == ({"ok": 80}, {})


def test_a_fork_has_children_of_its_own(sandbox: Sandbox, body: bytes) -> None:
    wanted = crop(sandbox, body)
    pid = pid_of_the_idle_one(sandbox)
    read, write = os.pipe()
    fork = os.fork()
    if not fork:
        try:
            same = crop(sandbox, body) == wanted
            os.write(write, struct.pack("<?Q", same, pid_of_the_idle_one(sandbox)))
            sandbox.close()
        finally:
            os._exit(0)
    same, other = struct.unpack("<?Q", os.read(read, 9))
    os.waitpid(fork, 0)
    assert same
    assert other != pid
    assert crop(sandbox, body) == wanted
    assert pid_of_the_idle_one(sandbox) == pid  # the fork has left it alone
    for end in (read, write):
        os.close(end)


def test_closing_ends_all_children(body: bytes) -> None:
    sandbox = Sandbox()
    crop(sandbox, body)
    (child,) = sandbox._idle
    sandbox.close()
    assert child.process.returncode == -signal.SIGKILL
    assert crop(sandbox, body)  # a thread that was late
    assert not sandbox._idle


def test_children_end_with_a_sandbox_that_nobody_has_any_more(body: bytes) -> None:
    sandbox = Sandbox()
    crop(sandbox, body)
    (child,) = sandbox._idle
    del sandbox
    assert child.process.returncode == -signal.SIGKILL


def test_it_can_be_sent_to_another_process(body: bytes) -> None:
    sandbox = Sandbox(Limits(max_pixels=6300), 1 << 26, 3.5, 4.5)
    wanted = crop(sandbox, body)
    sent = pickle.loads(pickle.dumps(sandbox))
    assert not sent._idle
    assert (sent.limits, sent.memory_bytes) == (Limits(max_pixels=6300), 1 << 26)
    assert (sent.cpu_seconds, sent.answer_seconds) == (3.5, 4.5)
    assert crop(sent, body) == wanted


def test_one_that_cannot_be_started_is_no_images_fault(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "__file__", "/no/such/child.py")
    for loader in (CpuLoader(SPEC), PillowLoader(SPEC)):
        with pytest.raises(LoaderError, match="did not start: exit status 2"):
            loader.load([body])
        loader.close()
