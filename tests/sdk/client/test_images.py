"""Tests what callers give as images: pixels from memory give what their file gives through the server's loader."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from milkweed.client import ImageRefused, images
from milkweed.client.images import encode, in_batches
from milkweed.loaders import CpuLoader, PillowLoader, PreprocessSpec

SPEC = {"size": 24, "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.25] * 3}


@pytest.fixture(scope="module")
def pixels() -> Any:
    """Encoded images to model input, by the server's reference loader, which resizes files and arrays alike."""
    loader = PillowLoader(PreprocessSpec.from_dict(SPEC))

    def load(*encoded: bytes) -> Any:
        found = loader.load(encoded)
        assert not found.errors
        return found.pixels

    yield load
    loader.close()


def picture(mode: str, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Smooth colours and noise in a mode."""
    rng = np.random.default_rng(0)
    channels = {"L": 1, "I;16": 1, "LA": 2, "P": 3, "1": 1}.get(mode, len(mode))
    levels = np.linspace(0, 200, size[0] * size[1] * channels).reshape(size[1], size[0], channels)
    noisy = (levels + rng.uniform(0, 55, levels.shape)).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(noisy[..., 0].astype(np.uint16) * 257)
    plain = {1: "L", 2: "LA", 3: "RGB", 4: mode}[channels]
    found = Image.frombytes(plain, size, noisy.tobytes())
    return found if plain == mode else found.convert(mode)


def saved(image: Image.Image, format: str, orientation: int | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    image.save(out, format, **options)
    return out.getvalue()


def turned_tiff() -> bytes:
    return saved(picture("RGB"), "TIFF", tiffinfo={0x0112: 6})


FILES: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved(picture("RGB"), "JPEG"),
    "jpeg grey": lambda: saved(picture("L"), "JPEG"),
    "jpeg cmyk": lambda: saved(picture("CMYK"), "JPEG"),
    **{f"jpeg turned {turn}": lambda turn=turn: saved(picture("RGB"), "JPEG", turn) for turn in range(2, 9)},
    "tiff turned": turned_tiff,
    "png": lambda: saved(picture("RGB"), "PNG"),
    "png turned": lambda: saved(picture("RGBA"), "PNG", 3),
    **{f"png {mode}": lambda mode=mode: saved(picture(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA", "I;16")},
    "png palette, clear": lambda: saved(picture("P"), "PNG", transparency=3),
    "gif": lambda: saved(picture("P"), "GIF"),
    "webp": lambda: saved(picture("RGBA"), "WEBP"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_pillow_image_gives_what_its_file_gives(name: str, pixels: Any) -> None:
    file = FILES[name]()
    opened = Image.open(io.BytesIO(file))
    assert np.array_equal(pixels(encode(opened)), pixels(file))


def test_pixels_that_are_too_many_for_an_array_go_as_png(pixels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_NPY_BYTES", 100)
    file = saved(picture("RGB"), "JPEG")
    encoded = encode(Image.open(io.BytesIO(file)))
    assert encoded.startswith(b"\x89PNG")
    assert np.array_equal(pixels(encoded), pixels(file))


@pytest.mark.parametrize("size", [(1, 1), (40, 30), (1000, 3), (999, 7)])
def test_the_npy_of_a_picture_is_what_numpy_writes(size: tuple[int, int]) -> None:
    image = picture("RGB", size)
    encoded = encode(image)
    assert np.array_equal(np.load(io.BytesIO(encoded)), np.asarray(image))
    out = io.BytesIO()
    np.save(out, np.asarray(image))
    assert encoded == out.getvalue()


def test_the_sample_photographs_give_what_their_files_give(shared: Path) -> None:
    """Twenty real JPEGs as pixels, to the bit what the server makes of their files."""
    loader = CpuLoader(PreprocessSpec.from_dict({**SPEC, "size": 64}))
    paths = sorted((shared / "data" / "imagenet-sample").iterdir())[::25]
    opened = [encode(Image.open(path)) for path in paths]
    assert np.array_equal(loader.load(opened).pixels, loader.load([path.read_bytes() for path in paths]).pixels)
    loader.close()


def test_arrays_give_what_their_images_give(pixels: Any) -> None:
    image = picture("RGB")
    array = np.asarray(image)
    want = pixels(saved(image, "PNG"))
    for given in (array, np.asfortranarray(array), array[:, ::1]):
        assert np.array_equal(pixels(encode(given)), want)
    grey = np.asarray(picture("L"))
    assert np.array_equal(pixels(encode(grey)), pixels(saved(picture("L"), "PNG")))
    ready = want[0]
    assert np.array_equal(pixels(encode(ready)), want)


def test_bytes_paths_and_files_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"image")
    with open(path, "rb") as file:
        for given in (b"image", bytearray(b"image"), memoryview(b"image"), path, str(path), file, io.BytesIO(b"image")):
            assert images.is_one(given)
            assert encode(given) == b"image"
    assert not any(map(images.is_one, ([b""], (), iter([b""]))))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageRefused, match="unreadable: cannot be read: Is a directory"):
        encode(tmp_path)
    torn = Image.open(io.BytesIO(saved(picture("RGB", (400, 300)), "JPEG")[:3000]))
    with pytest.raises(ImageRefused, match=r"unreadable: cannot be read: .*truncated"):
        encode(torn)
    with pytest.raises(TypeError, match="int is no image: give bytes, a path"):
        encode(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reads str is no image: open it in binary mode"):
        encode(io.StringIO("text"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(2, 30, 40, 3\) is several images"):
        encode(np.zeros((2, 30, 40, 3), np.uint8))
    with pytest.raises(ValueError, match="mode F has no 8-bit levels"):
        encode(picture("L").convert("F"))
    with pytest.raises(ValueError, match="allow_pickle"):
        encode(np.array([[object()]]))


def test_a_picture_that_was_turned_by_hand_is_not_turned_again(pixels: Any) -> None:
    opened = Image.open(io.BytesIO(saved(picture("RGB"), "JPEG", 6)))
    assert np.array_equal(pixels(encode(ImageOps.exif_transpose(opened))), pixels(encode(opened)))


def test_batches_are_bounded_by_images_and_bytes() -> None:
    given = [b"1234", b"5", b"6", b"78", b"9"]
    assert list(in_batches(given, 3, 100)) == [[b"1234", b"5", b"6"], [b"78", b"9"]]
    assert list(in_batches(given, 3, 4)) == [[b"1234"], [b"5", b"6", b"78"], [b"9"]]
    assert list(in_batches([], 3, 4)) == []


def test_the_client_imports_nothing_heavy() -> None:
    code = (
        "import sys, milkweed, milkweed.client; assert milkweed.load; "
        "names = set(sys.modules); heavy = {'torch', 'numpy', 'PIL', 'pydantic', 'typer', 'fastapi'} & names; "
        "print(sorted(heavy | {name for name in names if name.startswith('milkweed.') and 'client' not in name}))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    light = subprocess.run(
        [sys.executable, "-P", "-c", "import sys, milkweed; print('httpx' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert light.stdout == "False\n"
