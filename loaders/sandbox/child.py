"""The program of a child process: it decodes one image after another for its parent, and can do little else.

It is a script, run as `python -I -S child.py PACKAGES MEMORY_BYTES CPU_SECONDS`, where PACKAGES is the folder that the
parent imported Pillow from. It imports only Pillow and the standard library, limits itself, and writes `READY`. Then it
answers for each image in two steps: it sends what the header says and, once the parent has accepted that, the pixels.
It ends when its stdin is closed.

The parent imports the messages and `cut` from this file, so that both processes use the same code.
"""

import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO, NamedTuple

if sys.platform != "win32":  # where only the parent imports this
    import resource
if __name__ == "__main__":
    sys.path.append(sys.argv[1])

from PIL import Image

READY = b"R"
ASK = struct.Struct("<8sQ")
"""The parent begins with this: Pillow's name of the format, and how many bytes of the encoded image follow."""
FOUND = struct.Struct("<?8s4I")
"""The child answers `ASK` with this: whether it opened the image, mode, width, height (px), orientation, frames."""
WANT = struct.Struct("<B8i")
"""The parent then asks with this for `NOTHING`, for the `WHOLE` picture, or for a `CROP`; a `Crop` follows.

`WHOLE` uses only the orientation of that `Crop`.
"""
MADE = struct.Struct("<?Q")
"""The child answers `WANT` with this, unless the parent wants `NOTHING`.

It says whether the image was decoded, and how many bytes of RGB levels follow.
"""

NOTHING, WHOLE, CROP = range(3)

_BAND_PIXELS = 1 << 20
_ORIENTATION_TAG = 0x0112


class Crop(NamedTuple):
    """Says how the model's crop is made from a stored picture.

    Args:
        orientation: EXIF orientation, 1 to 8, by which the picture is turned upright first.
        width, height: size that the upright picture is resized to, px; horizontally first, then vertically.
        left, top, size: square that is then cut out, px; it is black where it lies outside the picture.
        bilinear: the resizing filter is bilinear; otherwise it is bicubic.
        transposed: the crop is transposed at the end.
    """

    orientation: int
    width: int = 0
    height: int = 0
    left: int = 0
    top: int = 0
    size: int = 0
    bilinear: bool = False
    transposed: bool = False


class Turn(NamedTuple):
    """Says how a stored picture is turned upright: it is flipped left-right and top-bottom, then transposed."""

    flip_x: bool
    flip_y: bool
    transpose: bool


# EXIF 2.32, tag 0x0112, says on which sides of the scene the stored row 0 and column 0 lie.
TURNS = {
    1: Turn(False, False, False),
    2: Turn(True, False, False),
    3: Turn(True, True, False),
    4: Turn(False, True, False),
    5: Turn(False, False, True),
    6: Turn(False, True, True),
    7: Turn(True, True, True),
    8: Turn(True, False, True),
}
_PILLOW_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert as Pillow's convert("RGB") does, without alpha, but scale 16-bit grey to 8 bits instead of saturating."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        image = Image.frombytes("L", image.size, image.tobytes("raw", "I;16B")[::2])
    # Alpha is dropped, so a transparent colour of a palette would only cause a warning.
    image.info.pop("transparency", None)
    return image.convert("RGB")


def stored_box(box: tuple[int, int, int, int], width: int, height: int, orientation: int) -> tuple[int, int, int, int]:
    """Map a box (left, top, right, bottom) of the upright picture into the stored picture of width x height px."""
    turn = TURNS[orientation]
    left, top, right, bottom = box
    if turn.transpose:
        left, top, right, bottom = top, left, bottom, right
    if turn.flip_x:
        left, right = width - right, width - left
    if turn.flip_y:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def upright_bands(image: Image.Image, orientation: int, widest: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Yield the upright picture in RGB as bands of whole rows, each with the number of its first row.

    No copy of the whole picture is made.

    Args:
        widest: width that the bands will be resized to, px, if that is more than they have.
    """
    width, height = image.size[::-1] if TURNS[orientation].transpose else image.size
    rows = max(1, _BAND_PIXELS // max(width, widest))
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        band = image.crop(stored_box(box, *image.size, orientation))
        yield top, to_rgb(band if orientation == 1 else band.transpose(_PILLOW_TURNS[orientation]))


def cut(image: Image.Image, crop: Crop) -> Image.Image:
    """Make the crop in RGB, size x size px, with the same bits as if Pillow resized the whole picture and cut it.

    Pillow resizes in two passes with 8-bit levels between them. The first treats every row alone and the second every
    column alone, so the first pass runs on bands of rows, and the second only gets the columns of the crop.
    """
    size, resampling = crop.size, Image.Resampling.BILINEAR if crop.bilinear else Image.Resampling.BICUBIC
    left, right = max(crop.left, 0), min(crop.left + size, crop.width)
    upright_height = image.width if TURNS[crop.orientation].transpose else image.height
    tall = Image.new("RGB", (right - left, upright_height))
    for top, band in upright_bands(image, crop.orientation, crop.width):
        tall.paste(band.resize((crop.width, band.height), resampling).crop((left, 0, right, band.height)), (0, top))
    top, bottom = max(crop.top, 0), min(crop.top + size, crop.height)
    made = Image.new("RGB", (size, size))
    columns = max(1, _BAND_PIXELS // crop.height)
    for first in range(0, tall.width, columns):
        band = tall.crop((first, 0, min(first + columns, tall.width), tall.height))
        band = band.resize((band.width, crop.height), resampling).crop((0, top, band.width, bottom))
        made.paste(band, (first + max(-crop.left, 0), max(-crop.top, 0)))
    return made.transpose(Image.Transpose.TRANSPOSE) if crop.transposed else made


def load_plugins() -> None:
    """Import everything that any image may need, because no file can be opened later.

    Pillow imports some of it inside its functions.
    """
    import copy  # noqa: F401

    from PIL import AvifImagePlugin, ImageOps, Jpeg2KImagePlugin, TiffImagePlugin  # noqa: F401

    Image.preinit()  # BMP, GIF, JPEG, PNG, PPM
    Image.MAX_IMAGE_PIXELS = None  # the parent decides how many there may be
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def limit(memory_bytes: int) -> None:
    """Forbid this process to map more memory, to open files or sockets, to start processes and to let files grow.

    The kernel does not count the processes of root, so a child that runs as root can start some.

    Args:
        memory_bytes: what may be mapped beyond what is mapped already.
    """
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    os.nice(10)
    for kind, most in (
        (resource.RLIMIT_AS, mapped + memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (_within(kind, most),) * 2)


def limit_cpu(seconds: float) -> None:
    """Allow this process so many more seconds of CPU time; then a timer ends it.

    The kernel ends it within two seconds more if the timer does not.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    soft = _within(resource.RLIMIT_CPU, int(time.process_time() + seconds) + 2)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _within(kind: int, most: int) -> int:
    """Return the limit, or the hard limit of this process where that is lower."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def serve(stdin: BinaryIO, stdout: BinaryIO, cpu_seconds: float) -> None:
    """Answer requests until stdin is closed."""
    while len(head := stdin.read(ASK.size)) == ASK.size:
        format, size = ASK.unpack(head)
        limit_cpu(cpu_seconds)
        _serve_one(format.rstrip(b"\0").decode(), stdin.read(size), stdin, stdout)


def _serve_one(format: str, data: bytes, stdin: BinaryIO, stdout: BinaryIO) -> None:
    try:
        image = Image.open(BytesIO(data), formats=(format,))
        found = FOUND.pack(True, *_header(image))
    except Exception:
        image, found = None, FOUND.pack(False, b"", 0, 0, 0, 0)
    stdout.write(found)
    stdout.flush()
    if image is None:
        return
    kind, *numbers = WANT.unpack(stdin.read(WANT.size))
    if kind != NOTHING:
        for part in _made(image, kind, Crop(*numbers)):
            stdout.write(part)
        stdout.flush()


def _header(image: Image.Image) -> tuple[bytes, int, int, int, int]:
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    orientation = exif.get(_ORIENTATION_TAG, 1)
    frames = vars(image).get("n_frames", 1)  # for GIF and TIFF it is a property that reads the whole file
    return image.mode.encode(), *image.size, orientation if orientation in TURNS else 1, frames


def _made(image: Image.Image, kind: int, crop: Crop) -> Iterator[bytes]:
    """Decode the image and yield the answer to a `WANT` in parts."""
    opened = image.mode, image.size
    try:
        image.load()
        if (image.mode, image.size) != opened:
            raise ValueError("not as its header says")
        parts = [cut(image, crop).tobytes()] if kind == CROP else None
    except Exception:
        yield MADE.pack(False, 0)
        return
    yield MADE.pack(True, 3 * (crop.size**2 if kind == CROP else image.width * image.height))
    yield from parts or (band.tobytes() for _, band in upright_bands(image, crop.orientation))


def main() -> None:
    """Import what images need, limit this process, then serve."""
    load_plugins()
    limit(int(sys.argv[2]))
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[3]))


if __name__ == "__main__":
    main()
