"""The sandbox gives each caller the right answer, refuses what is beyond its limits, and ends its children."""

import os
import pickle
import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders import CpuLoader, ImageLimits, Loader, PillowLoader, PreprocessSpec, create_loader, validate
from milkweed.loaders.dataset.evaluation import PreparedImages
from milkweed.loaders.dataset.folder import read_levels
from milkweed.loaders.dataset.training import Augmentation, TrainingImages
from milkweed.loaders.errors import LoaderError
from milkweed.loaders.sandbox import sandbox as sandbox_module
from milkweed.loaders.sandbox.sandbox import Sandbox

from ..conftest import encoded, picture
from .conftest import SPEC, crop, idle_child, refusal


def test_a_child_is_started_when_needed_and_then_kept(sandbox: Sandbox, body: bytes) -> None:
    assert not sandbox.idle
    first = crop(sandbox, body)
    child = idle_child(sandbox)
    assert crop(sandbox, body) == first
    assert idle_child(sandbox) is child
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2}, {})


@pytest.mark.parametrize("name", ["cpu", "pillow", "dali"])
def test_loaders_take_a_crop_in_place_of_the_image(name: str, sandbox: Sandbox, body: bytes) -> None:
    if name == "dali":
        pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    loader: Loader = create_loader(name, SPEC, sandbox=sandbox)
    jpeg = encoded(picture(90, 70), "JPEG")
    wanted = loader.load([jpeg, body]).pixels
    levels, info = sandbox.crop(body, validate(body), SPEC)
    assert (info.format, info.width, info.height, info.mode, info.cropped) == ("TIFF", 90, 70, "RGB", True)
    assert not info.sandboxed
    found = loader.load([jpeg, levels], [validate(jpeg), info])
    assert found.ok == [0, 1]
    assert np.array_equal(found.pixels, wanted)
    assert sandbox.images == {"ok": 2}
    with pytest.raises(LoaderError, match="the crop has 3072 bytes: the model takes 16x16 px of 3 bytes"):
        create_loader(name, PreprocessSpec(size=16), sandbox=sandbox).load([levels], [info])
    loader.close()
    assert crop(sandbox, body) == levels  # the loader did not make this sandbox, so it has not closed it


def test_loaders_that_were_given_none_end_their_own(body: bytes) -> None:
    for loader in (CpuLoader(SPEC), PillowLoader(SPEC)):
        assert loader.load([body]).ok == [0]
        child = idle_child(loader.sandbox)
        loader.close()
        assert child.process.returncode == -signal.SIGKILL


def test_formats_with_readers_of_our_own_start_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(sandbox_module, "Child", started)
    bodies = [encoded(picture(40, 30), format) for format in ("JPEG", "PNG", "WEBP", "NPY")]
    limits = ImageLimits(formats=("JPEG", "PNG", "WEBP", "NPY"))
    for name in ("cpu", "pillow"):
        result = create_loader(name, SPEC, limits).load([*bodies, encoded(picture(40, 30), "GIF")])
        assert result.ok == [0, 1, 2, 3]
        assert result.errors[4].code == "unsupported_format"


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("orientation", "size"), [(1, (150, 90)), (6, (150, 90)), (3, (2000, 1100))])
def test_whole_pictures_are_upright(orientation: int, size: tuple[int, int], sandbox: Sandbox, tmp_path: Path) -> None:
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


def test_data_sets_read_rare_formats(tmp_path: Path) -> None:
    samples = [(tmp_path / f"{format}.img", place) for place, format in enumerate(("TIFF", "GIF", "PNG"))]
    for path, _ in samples:
        path.write_bytes(encoded(picture(60, 60).quantize(200), path.stem))
    (evaluated, _), *rest = PreparedImages(samples, SPEC, 3)
    wanted = PillowLoader(SPEC).load([path.read_bytes() for path, _ in samples]).pixels
    assert not rest
    np.testing.assert_allclose(evaluated[:2], wanted[:2], rtol=0, atol=1e-6)
    made = []
    for workers in (0, 1):  # a worker is a fork of this process and starts its own children
        source = TrainingImages(samples, SPEC, Augmentation(), batch_size=3, workers=workers, cache_bytes=0)
        ((images, _),) = source.batches(0, 0)
        assert not source.skipped
        made.append(images)
    assert np.array_equal(*made)


def test_refusals_by_the_parent_cost_no_child(sandbox: Sandbox, body: bytes) -> None:
    crop(sandbox, body)
    child, gif = idle_child(sandbox), encoded(Image.new("L", (1, 1)), "GIF")
    for refused, code, message in (
        (body[:60], "undecodable", "TIFF header is broken or cut off"),
        (
            *(encoded(picture(90, 70), "BMP")[:-4000], "undecodable"),
            "BMP of 90x70 px cannot be decoded: truncated, corrupt, or it takes more than 25 MB",
        ),
        (
            *(encoded(Image.new("F", (8, 8)), "TIFF"), "unsupported_format"),
            "TIFF of mode F is not accepted: expected 8 or 16 bit samples",
        ),
        # Pillow alone would call it a bomb.
        (gif[:6] + b"\xff" * 4 + gif[10:], "too_many_pixels", "GIF is 65535x65535 px: side limit 16384 px"),
    ):
        error = refusal(sandbox, refused)
        assert (error.code, error.message) == (code, message)
    crop(sandbox, body)
    assert idle_child(sandbox) is child
    assert (sandbox.images, sandbox.deaths) == ({"ok": 2, "refused": 4}, {})
    small = Sandbox(ImageLimits(max_pixels=6299))
    assert refusal(small, body).message == "TIFF is 90x70 px: limit 0.006299 megapixels for TIFF"
    small.close()


def test_many_threads_at_once(sandbox: Sandbox) -> None:
    formats = ("TIFF", "GIF", "BMP", "PPM", "AVIF")
    bodies = [encoded(picture(50 + seed, 60, seed), formats[seed % 5]) for seed in range(40)]
    wanted = [crop(sandbox, body) for body in bodies]
    assert len(sandbox.idle) == 1
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: crop(sandbox, body), bodies)) == wanted
    assert 1 < len(sandbox.idle) <= 8
    assert (sandbox.images, sandbox.deaths) == ({"ok": 80}, {})


def test_a_fork_has_children_of_its_own(sandbox: Sandbox, body: bytes) -> None:
    wanted = crop(sandbox, body)
    child = idle_child(sandbox)
    read, write = os.pipe()
    fork = os.fork()
    if not fork:
        try:
            same = crop(sandbox, body) == wanted
            os.write(write, struct.pack("<?Q", same, idle_child(sandbox).process.pid))
            sandbox.close()
        finally:
            os._exit(0)
    same, other = struct.unpack("<?Q", os.read(read, 9))
    os.waitpid(fork, 0)
    assert same
    assert other != child.process.pid
    assert crop(sandbox, body) == wanted
    assert idle_child(sandbox) is child  # the fork has left it alone
    for end in (read, write):
        os.close(end)


def test_children_end_with_their_sandbox(body: bytes) -> None:
    sandbox, dropped = Sandbox(), Sandbox()
    crop(sandbox, body)
    crop(dropped, body)
    children = [idle_child(sandbox), idle_child(dropped)]
    sandbox.close()
    del dropped  # nobody has it any more
    assert [child.process.returncode for child in children] == [-signal.SIGKILL] * 2
    assert crop(sandbox, body)  # as a thread would that was late
    assert not sandbox.idle


def test_it_can_be_sent_to_another_process(body: bytes) -> None:
    sandbox = Sandbox(ImageLimits(max_pixels=6300), 1 << 26, 3.5, 4.5)
    wanted = crop(sandbox, body)
    sent = pickle.loads(pickle.dumps(sandbox))
    assert not sent.idle
    assert (sent.limits, sent.memory_bytes) == (ImageLimits(max_pixels=6300), 1 << 26)
    assert (sent.cpu_seconds, sent.answer_seconds) == (3.5, 4.5)
    assert crop(sent, body) == wanted
