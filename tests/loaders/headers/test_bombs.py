"""The most expensive bodies that validation lets through cost this process at most 1 s CPU and 300 MB each.

What the children of the sandbox may cost is in sandbox/test_bombs.py.
"""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..conftest import encoded as saved
from ..conftest import noise

# The limits are set for 1 s where they were measured (loaders/headers/limits.py); machines are slower and loaded, and
# what a missing limit costs is 5 to 50 s.
MAX_CPU_SECONDS = 3.0
MAX_RSS_MB = 300

# A forked process a body: memory that an earlier one left free would hide what this one takes.
_MEASURE = """
import json, os, sys, time
from pathlib import Path
from milkweed.loaders import CpuLoader, PreprocessSpec

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

def measure(path):
    loader = CpuLoader(PreprocessSpec())
    loader.load([Path(sys.argv[1]).read_bytes()])
    idle = status("VmRSS")
    body = Path(path).read_bytes()
    seconds, result = [], None
    while not seconds or (len(seconds) < 3 and min(seconds) > 0.7):
        start = time.process_time()
        result = loader.load([body])
        seconds.append(time.process_time() - start)
    code = result.errors[0].code if result.errors else "ok"
    cost = {"cpu_seconds": min(seconds), "rss_mb": status("VmHWM") - idle, "code": code}
    print(json.dumps(cost), flush=True)

for path in sys.argv[2:]:
    if os.fork() == 0:
        measure(path)
        os._exit(0)
    os.wait()
"""


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png(width: int, height: int, depth: int) -> bytes:
    """RGBA whose rows are noise under the Paeth filter: small, and the dearest to undo."""
    row = b"\4" + np.random.default_rng(0).integers(0, 256, width * 4 * depth // 8, np.uint8).tobytes()
    packer = zlib.compressobj(1)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _lying_jpeg() -> bytes:
    body = saved(Image.new("RGB", (64, 64)), "JPEG")
    frame = body.index(b"\xff\xc0") + 5
    return body[:frame] + struct.pack(">HH", 6250, 8000) + body[frame + 4 :]


def _metadata_bomb() -> bytes:
    text = _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000), 9))
    body = saved(Image.new("RGB", (64, 64)), "PNG")
    return body[:33] + text * 2000 + body[33:]


BODIES = {
    "jpeg": ("ok", lambda: saved(noise(8000, 6248), "JPEG", quality=15, subsampling=0)),
    "jpeg_lying": ("undecodable", _lying_jpeg),
    "jpeg_scans": ("ok", lambda: saved(noise(5000, 4000), "JPEG", quality=30, progressive=True)),
    "jpeg_cmyk": ("ok", lambda: saved(noise(4000, 3000).convert("CMYK"), "JPEG", progressive=True)),
    "png": ("ok", lambda: _png(5000, 4000, 8)),
    "png_deep": ("ok", lambda: _png(3000, 4000, 16)),
    "png_text": ("ok", _metadata_bomb),
    "webp": ("ok", lambda: saved(noise(4000, 3120), "WEBP", method=0, quality=85)),
    "npy": ("ok", lambda: saved(np.zeros((4472, 4472), np.uint8), "NPY")),
    "npy_turned": ("ok", lambda: saved(np.zeros((2640, 2640, 3), np.uint8, order="F"), "NPY")),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status")
@pytest.mark.slow
def test_no_body_costs_more_than_its_share(tmp_path, picture, encoded):
    (tmp_path / "small").write_bytes(encoded(picture(16, 16), "JPEG"))
    for name, (_, make) in BODIES.items():
        (tmp_path / name).write_bytes(make())
    paths = [str(tmp_path / name) for name in ("small", *BODIES)]
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, *paths], capture_output=True, check=True, text=True, timeout=300
    )
    costs = dict(zip(BODIES, map(json.loads, run.stdout.splitlines()), strict=True))
    print(json.dumps(costs, indent=1))
    assert {name: cost["code"] for name, cost in costs.items()} == {n: code for n, (code, _) in BODIES.items()}
    assert max(cost["rss_mb"] for cost in costs.values()) <= MAX_RSS_MB, costs
    assert max(cost["cpu_seconds"] for cost in costs.values()) <= MAX_CPU_SECONDS, costs
