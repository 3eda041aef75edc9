"""A child alone imports little, can do little once it has limited itself, and ends with its parent."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import PIL
import pytest
from PIL import Image

from milkweed.loaders import PreprocessSpec, validate
from milkweed.loaders.errors import LoaderError
from milkweed.loaders.sandbox import child as child_module
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import Sandbox

from ...support.waiting import HANG_SECONDS, eventually, has_ended

PACKAGES = str(Path(PIL.__file__).parent.parent)

# This program limits itself as a child does, then makes each attempt and prints what came of it.
ATTEMPTS = """
import os, runpy, socket, sys
child = runpy.run_path(sys.argv[2])
child["load_plugins"]()
if os.geteuid() == 0:
    os.setuid(65534)  # the processes of root are not counted
child["limit"](64 << 20)
for name, attempt in {
    "file": lambda: open("/dev/null"),
    "socket": lambda: socket.socket(),
    "pipe": lambda: os.pipe(),
    "process": lambda: os.fork() or os._exit(0),
    "memory": lambda: bytearray(65 << 20),
    "less memory": lambda: bytearray(40 << 20),
    "nice": lambda: None if os.nice(0) >= 10 else 1 / 0,
}.items():
    try:
        attempt()
        print(name, "done", flush=True)
    except Exception as error:
        print(name, type(error).__name__, getattr(error, "errno", ""), flush=True)
"""


def test_it_imports_only_pillow_the_crop_and_the_standard_library(
    tmp_path: Path, picture: Callable[..., Image.Image], encoded: Callable[..., bytes]
) -> None:
    """A child decodes an image of each format, and Python writes down each module that it imports."""
    bodies = {format: encoded(picture(20, 20), format) for format in ("TIFF", "AVIF", "GIF", "BMP", "PPM", "JPEG2000")}
    crop = child_module.Crop(1, 20, 20, 0, 0, 20)
    asked = b"".join(
        child_module.ASK.pack(format.encode(), len(body)) + body + child_module.WANT.pack(child_module.CROP, *crop)
        for format, body in bodies.items()
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", child_module.__file__, PACKAGES, str(256 << 20), "2"],
        input=asked,
        capture_output=True,
        check=True,
        env={},
        timeout=HANG_SECONDS,
    )
    answer = child_module.FOUND.size + child_module.MADE.size + 20 * 20 * 3
    assert len(ran.stdout) == len(child_module.READY) + len(bodies) * answer
    modules = set(re.findall(r"\|\s+([\w.]+)$", ran.stderr.decode(), re.MULTILINE))
    assert {"PIL.Image", "PIL._imaging", "PIL._avif", "struct"} <= modules
    packages = {name.partition(".")[0] for name in modules}
    # `crop` is preprocess/crop.py; `copy` looks for Jython's package `org` in vain.
    assert packages - sys.stdlib_module_names == {"PIL", "crop", "org"}


def test_it_can_open_nothing_and_has_no_more_memory_than_it_may() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ATTEMPTS, PACKAGES, child_module.__file__],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ran.stdout.splitlines() == [
        "file OSError 24",
        "socket OSError 24",
        "pipe OSError 24",
        "process BlockingIOError 11",
        "memory MemoryError ",
        "less memory done",
        "nice done",
    ]


def test_the_kernel_holds_the_limits_of_a_real_one(sandbox: Sandbox, encoded: Callable[..., bytes]) -> None:
    body = encoded(Image.new("RGB", (8, 8)), "BMP")
    sandbox.crop(body, validate(body), PreprocessSpec(size=8))
    (child,) = sandbox.idle
    lines = Path(f"/proc/{child.process.pid}/limits").read_text().splitlines()[1:]
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    for name in ("Max open files", "Max file size", "Max core file size", "Max processes"):
        assert limits[name] == ["0", "0"], name
    soft, hard = map(int, limits["Max address space"])
    assert soft == hard
    assert 256 << 20 < soft < 400 << 20
    assert int(limits["Max cpu time"][0]) in (3, 4)
    environment = Path(f"/proc/{child.process.pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    assert all(variable.startswith(b"MALLOC_") for variable in environment)
    assert os.readlink(f"/proc/{child.process.pid}/cwd") == "/"
    assert os.getsid(child.process.pid) == child.process.pid


def test_it_ends_with_its_stdin() -> None:
    child = Child(64 << 20, 1, 10)
    child.process.stdin.close()
    assert child.process.wait(HANG_SECONDS) == 0
    child.end()


def test_it_ends_with_its_parent_however_that_ends() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from milkweed.loaders.sandbox.process import Child; "
            "print(Child(64 << 20, 1, 10).process.pid, flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)  # it lives
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: has_ended(pid))


@pytest.mark.parametrize(
    ("program", "said"), [("raise SystemExit(7)", "exit status 7"), ("print('hello', flush=True)", "did not start")]
)
def test_one_that_does_not_start_is_our_fault_and_not_the_images(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(program)
    monkeypatch.setattr(child_module, "__file__", str(script))
    with pytest.raises(LoaderError, match=said):
        Child(64 << 20, 1, 10)


def test_a_python_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(LoaderError, match="cannot be started: No such file or directory"):
        Child(64 << 20, 1, 10)
