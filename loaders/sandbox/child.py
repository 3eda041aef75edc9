"""The program of a child process: it decodes one image after another for its parent, and can do little else.

It is a script, run as `python -I -S child.py PACKAGES MEMORY_BYTES CPU_SECONDS`, where PACKAGES is the folder that the
parent imported Pillow from. It imports only Pillow, the standard library, `syscall_filter.py` and
`preprocess/crop.py`, limits itself, and writes `READY`. Then it answers for each image in two steps: it sends what the
header says and, once the parent has accepted that, the pixels. It ends when its stdin is closed.

The parent imports the messages from this file. Both processes make crops with `preprocess.crop`.
"""

import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO

if sys.platform != "win32":  # where only the parent imports this
    import resource
if TYPE_CHECKING or __package__:
    from ..preprocess.crop import TURNS, Crop, cut, upright_bands
    from .syscall_filter import filter_system_calls
else:  # as a script it is in no package
    _FOLDER = os.path.dirname(__file__)
    sys.path += [_FOLDER, os.path.join(os.path.dirname(_FOLDER), "preprocess"), sys.argv[1]]
    from crop import TURNS, Crop, cut, upright_bands
    from syscall_filter import filter_system_calls

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

FILTER_REFUSED = 3  # as the exit status

_ORIENTATION_TAG = 0x0112
_SPARE_BYTES = 24 << 20
# The most that was found, with all copies; docs/images.md#limits. The JPEG 2000 is RGBA, the TIFF is turned by its tag.
_BYTES_A_PIXEL = {"TIFF": 18, "AVIF": 24, "JPEG2000": 28}


def memory_for(format: str, body_bytes: int, pixels: int = 0) -> int:
    """Return what decoding may take, bytes, whatever tiles, strips, frames or tables a body claims."""
    return _SPARE_BYTES + 2 * body_bytes + _BYTES_A_PIXEL.get(format, 12) * pixels


def load_plugins() -> None:
    """Import everything that any image may need, because no file can be opened later.

    Pillow imports some of it inside its functions.
    """
    import copy  # noqa: F401

    from PIL import AvifImagePlugin, ImageOps, Jpeg2KImagePlugin, TiffImagePlugin  # noqa: F401

    Image.preinit()  # BMP, GIF, JPEG, PNG, PPM
    Image.MAX_IMAGE_PIXELS = None  # the parent decides how many there may be
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def limit(memory_bytes: int) -> int:
    """Forbid this process to map more memory, files and processes, and all system calls that decoding does not need.

    Args:
        memory_bytes: what may be mapped beyond what is mapped already.

    Returns:
        A descriptor that `limit_memory` reads from.

    Raises:
        OSError: the kernel gives no filter of system calls.
    """
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    os.nice(10)
    for kind, most in (
        (resource.RLIMIT_AS, _mapped(statm) + memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (_within(kind, most),) * 2)
    filter_system_calls()
    return statm


def limit_memory(statm: int, memory_bytes: int) -> None:
    """Allow this process so many bytes beyond what it has mapped now, within the limit that it began with."""
    soft = _within(resource.RLIMIT_AS, _mapped(statm) + memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _mapped(statm: int) -> int:
    return int(os.pread(statm, 99, 0).split()[0]) * resource.getpagesize()


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


def serve(stdin: BinaryIO, stdout: BinaryIO, statm: int, cpu_seconds: float) -> None:
    """Answer requests until stdin is closed."""
    while len(head := stdin.read(ASK.size)) == ASK.size:
        format, size = ASK.unpack(head)
        limit_cpu(cpu_seconds)
        _serve_one(format.rstrip(b"\0").decode(), size, stdin, stdout, statm)


def _serve_one(format: str, size: int, stdin: BinaryIO, stdout: BinaryIO, statm: int) -> None:
    limit_memory(statm, memory_for(format, size))
    data = stdin.read(size)
    try:
        image = Image.open(BytesIO(data), formats=(format,))
        header = FOUND.pack(True, *_header(image))
    except Exception:
        image, header = None, FOUND.pack(False, b"", 0, 0, 0, 0)
    stdout.write(header)
    stdout.flush()
    if image is None:
        return
    kind, *numbers = WANT.unpack(stdin.read(WANT.size))
    if kind != NOTHING:
        limit_memory(statm, memory_for(format, size, image.width * image.height))
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
    try:
        statm = limit(int(sys.argv[2]))
    except OSError:
        sys.exit(FILTER_REFUSED)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer, statm, float(sys.argv[3]))


if __name__ == "__main__":
    main()
