"""A child alone imports little, can do little once it has limited itself, and ends with its parent."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import PIL
import psutil
import pytest
from PIL import Image

from milkweed.loaders import PreprocessSpec, validate
from milkweed.loaders.errors import LoaderError
from milkweed.loaders.sandbox import child as child_module
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import Sandbox

from ...support.waiting import HANG_SECONDS, eventually, has_ended
from ..conftest import encoded, picture
from .conftest import idle_child

PACKAGES = str(Path(PIL.__file__).parent.parent)

# This program limits itself as a child does, then makes each attempt and prints what came of it.
ATTEMPTS = """
import ctypes, fcntl, mmap, os, resource, runpy, socket, sys
child = runpy.run_path(sys.argv[2])
child["load_plugins"]()
victim, secret, user = map(int, sys.argv[3:6])
libc = ctypes.CDLL(None, use_errno=True)
os.setuid(user)
child["limit"](64 << 20)
class Span(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
here, there = Span(ctypes.addressof(buffer), 16), Span(secret, 16)
def call(name, *arguments):
    result = getattr(libc, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
for name, attempt in {
    "open": lambda: open("/dev/null"),
    "memfd": lambda: os.memfd_create("x"),
    "socket": lambda: socket.socket(),
    "pipe": lambda: os.pipe(),
    "dup": lambda: os.dup(0),
    "ioctl": lambda: fcntl.ioctl(0, 0x5413, bytes(8)),
    "fork": lambda: os.fork() or os._exit(0),
    "execve": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(victim, 0),
    "stop": lambda: os.kill(victim, 19),
    "pidfd": lambda: os.pidfd_open(victim),
    "read limit of another": lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE),
    "set limit of another": lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (64, 64)),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
    "ptrace": lambda: call("ptrace", 0x4206, victim, 0, 0),
    "process_vm_readv": lambda: call("process_vm_readv", victim, ctypes.byref(here), 1, ctypes.byref(there), 1, 0),
    "shmget": lambda: call("shmget", 0, 1 << 20, 0o1600),
    "unshare": lambda: call("unshare", 0x10000000),
    "io_uring_setup": lambda: call("syscall", 425, 8, ctypes.create_string_buffer(120)),
    "bpf": lambda: call("syscall", {"x86_64": 321, "aarch64": 280}[os.uname().machine], 5, bytes(128), 128),
    "code": lambda: mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC),
    "more code": lambda: call("mprotect", ctypes.addressof(buffer) & ~4095, 4096, 5),
    "capset": lambda: call("capset", b"\\x22\\5\\x08\\x20" + bytes(4), b"\\xff" * 24),
    "more files": lambda: call("prlimit", 0, 7, (ctypes.c_ulong * 2)(64, 64), None),
    "more memory": lambda: bytearray(65 << 20),
    "memory": lambda: bytearray(40 << 20),
}.items():
    try:
        attempt()
        print(name, "done", flush=True)
    except Exception as error:
        print(name, type(error).__name__, getattr(error, "errno", ""), flush=True)
"""
REFUSED = """open,memfd,socket,pipe,dup,ioctl,fork,execve,kill,stop,pidfd,read limit of another,set limit of another,
setpriority,ptrace,process_vm_readv,shmget,unshare,io_uring_setup,bpf,code,more code,capset,more files"""


def test_it_imports_only_pillow_the_crop_and_the_standard_library() -> None:
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
    assert packages - sys.stdlib_module_names == {"PIL", "crop", "org", "syscall_filter"}


@pytest.mark.parametrize("user", sorted({os.geteuid(), 65534} if os.geteuid() == 0 else {os.geteuid()}))
def test_whoever_it_is_it_reaches_nothing_and_has_no_more_memory_than_it_may(user: int) -> None:
    """A child attacks this process, as root without its capabilities and as nobody, and is refused each call."""
    secret = ctypes.create_string_buffer(b"a TLS key")
    arguments = [PACKAGES, child_module.__file__, os.getpid(), ctypes.addressof(secret), user]
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ATTEMPTS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    refused = [f"{name} PermissionError 1" for name in REFUSED.replace("\n", "").split(",")]
    assert ran.stdout.splitlines() == [*refused, "more memory MemoryError ", "memory done"]


def test_the_kernel_holds_the_limits_of_a_real_one(sandbox: Sandbox) -> None:
    body = encoded(Image.new("RGB", (8, 8)), "BMP")
    sandbox.crop(body, validate(body), PreprocessSpec(size=8))
    pid = idle_child(sandbox).process.pid
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    for name in ("Max open files", "Max file size", "Max core file size", "Max processes"):
        assert limits[name] == ["0", "0"], name
    soft, hard = map(int, limits["Max address space"])
    assert 256 << 20 < hard < 400 << 20
    mapped = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    assert soft < mapped + (40 << 20)  # what a picture of 8 x 8 px needs, and no more
    assert psutil.Process(pid).nice() == min(19, os.nice(0) + 10)
    status = Path(f"/proc/{pid}/status").read_text()
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"):
        assert line in status
    assert int(limits["Max cpu time"][0]) in (3, 4)
    environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    assert all(variable.startswith(b"MALLOC_") for variable in environment)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getpgid(pid) == pid  # Ctrl-C ends the parent alone
    assert os.getsid(pid) == os.getsid(0)  # its niceness counts: autogroups weigh sessions, not processes


@pytest.mark.parametrize("change", [{"size": (9, 9)}, {"mode": "L"}])
def test_a_picture_that_is_not_as_its_header_says_is_refused(change: dict[str, Any]) -> None:
    image = SimpleNamespace(mode="RGB", size=(8, 8), load=lambda: vars(image).update(change))
    answer = child_module._made(image, child_module.WHOLE, child_module.Crop(1))  # type: ignore[arg-type]
    assert list(answer) == [child_module.MADE.pack(False, 0)]


def test_it_ends_with_its_stdin() -> None:
    child = Child(64 << 20, 1, 10)
    child.process.stdin.close()
    assert child.process.wait(HANG_SECONDS) == 0
    child.end()


def test_it_ends_with_its_parent_however_that_ends() -> None:
    program = """
import sys
from milkweed.loaders.sandbox.process import Child
print(Child(64 << 20, 1, 10).process.pid, flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)  # it lives
        parent.kill()
    eventually(lambda: has_ended(pid))


# The first is the child's own, as on a machine whose architecture it does not know.
UNKNOWN_MACHINE = f"""
import platform, runpy
platform.machine = lambda: "riscv64"
runpy.run_path({child_module.__file__!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (UNKNOWN_MACHINE, "rare formats did not start: seccomp gives it no filter here"),
        ("raise SystemExit(7)", "exit status 7"),
        ("print('hello', flush=True)", "did not start"),
    ],
    ids=["no filter", "exit", "nonsense"],
)
def test_one_that_does_not_start_is_our_fault_and_not_the_images(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(program)
    monkeypatch.setattr(child_module, "__file__", str(script))
    with pytest.raises(LoaderError, match=said):
        Child(64 << 20, 1, 10)
