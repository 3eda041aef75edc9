"""The image built for real by buildah, which needs no daemon, and its root filesystem run as a container would be.

docs/image.md says how to run this. Beside MILKWEED_IMAGE_BASE, MILKWEED_IMAGE_VARIANT is cuda, cpu or light, and
MILKWEED_IMAGE_OPTIONS are more options of `buildah build`, for example what a machine needs to reach its package index.
"""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from PIL import Image

from milkweed.bench.ports import free_port

from ..kernels.triton.empty_driver import PROGRAM, build_empty_driver
from ..support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
VARIANT = os.environ.get("MILKWEED_IMAGE_VARIANT", "cuda")
UID = 65532
# The image need have no other program than Python that gives up root: all rights but these bubblewrap has taken.
NOBODY = f"""
import ctypes, os, sys
for right in range(int(open("/proc/sys/kernel/cap_last_cap").read()) + 1):
    assert ctypes.CDLL(None).prctl(24, right, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.setgroups([])
os.setgid({UID})
os.setuid({UID})
os.execvp(sys.argv[1], sys.argv[1:])
"""
# These are the packages whose size docs/image.md says.
PARTS = (
    *(".", "torch", "triton", "nvidia", "nvidia/dali", "nvidia/cudnn", "openvino"),
    *("milkweed", "milkweed/kernels/_native"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MILKWEED_IMAGE_BASE" not in os.environ, reason="MILKWEED_IMAGE_BASE names no image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be nobody inside"),
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")
        for tool in ("buildah", "bwrap")
    ),
]


def buildah(*arguments: object) -> str:
    """What a command of it prints to stdout; the log goes to stderr."""
    result = subprocess.run(
        ["buildah", *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, stderr=sys.stderr.fileno(), text=True
    )
    assert result.returncode == 0, arguments
    return result.stdout.strip()


def build(*options: object) -> None:
    """One target. The format is Docker's: OCI's knows no HEALTHCHECK."""
    more = shlex.split(os.environ.get("MILKWEED_IMAGE_OPTIONS", ""))
    base = f"BASE={os.environ['MILKWEED_IMAGE_BASE']}"
    command = ("build", "--isolation", "chroot", "--layers", "--quiet", "--format", "docker", "--build-arg", base)
    buildah(*command, "--build-arg", f"VARIANT={VARIANT}", *more, *options, ".")


@pytest.fixture(scope="module")
def image() -> str:
    """Build the image; its name."""
    name = f"localhost/milkweed:{VARIANT}"
    build("--tag", name)
    return name


@pytest.fixture(scope="module")
def config(image: str) -> dict[str, Any]:
    """How the image says it is to be run."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    return found


@pytest.fixture(scope="module")
def files(image: str) -> Iterator[Path]:
    """The root filesystem of the image."""
    container = buildah("from", "--pull-never", image)
    yield Path(buildah("mount", container))
    buildah("rm", container)


class Container:
    """Commands as nobody, without capabilities, on a root that is read-only but for /tmp, in the host's network."""

    def __init__(
        self,
        files: Path,
        config: dict[str, Any],
        tmp: Path | None = None,
        binds: Mapping[Path, str] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        self.environment = dict(each.split("=", 1) for each in config["Env"])
        self.environment |= {f"MILKWEED_{name.upper()}": str(value) for name, value in settings.items()}
        mounts = ["--ro-bind", files, "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
        rights = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
        user = [*chain.from_iterable(("--cap-add", right) for right in rights), "python", "-c", NOBODY]
        apart = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent"]
        mounts += ["--tmpfs", "/tmp"] if tmp is None else ["--bind", tmp, "/tmp"]
        mounts += chain.from_iterable(("--ro-bind", source, target) for source, target in binds.items())
        self.command = [shutil.which("bwrap"), *mounts, *apart, *user]

    @contextmanager
    def run(self, *command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """A process that waits for a command, and the command's id: it is process 1 of the container."""
        read, write = os.pipe()
        arguments = [*self.command[:1], "--info-fd", write, *self.command[1:], *command]
        with subprocess.Popen(
            [str(each) for each in arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[write],
        ) as process:
            os.close(write)
            with os.fdopen(read) as info:
                child = int(json.load(info)["child-pid"])
            try:
                yield process, child
            finally:
                process.kill()

    def output(self, *command: str) -> tuple[int, str]:
        """Exit code and what a short command prints."""
        with self.run(*command) as (process, _):
            out, err = process.communicate(timeout=HANG_SECONDS)
            return process.returncode, out + err


def photo() -> bytes:
    """A photograph where there is one, or some JPEG."""
    for found in Path(os.environ.get("MILKWEED_SHARED", "/nonexistent")).glob("data/imagenet-sample/**/*.JPEG"):
        return found.read_bytes()
    file = io.BytesIO()
    Image.effect_noise((640, 480), 64).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def test_it_says_how_it_is_run(config: dict[str, Any]) -> None:
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (f"{UID}:{UID}", ["milkweed"], ["serve"])
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "-m", "milkweed.server.process.healthcheck"]
    assert config["Labels"]["org.opencontainers.image.version"].endswith(f"-{VARIANT}")


def test_nothing_builds_in_it(files: Path) -> None:
    folders = [files / each for each in ("usr/bin", "usr/local/bin", "opt/milkweed/bin")]
    names = {path.name for folder in folders for path in folder.glob("*")}
    assert "python" in names
    assert ("sh" in names) == (VARIANT != "light")
    tools = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|ld|make|nvcc|ptxas|pip)[\d.-]*")
    assert not {name for name in names if tools.fullmatch(name)}
    packages = {path for path in files.glob("**/*-packages/*") if path.parent.is_dir()}
    assert not {path for path in packages if path.name == "pip"}
    assert not list((files / "opt").glob("**/*.a"))
    assert not list(files.glob("root/.cache")) + list(files.glob("tmp/*")) + list(files.glob("wheels"))
    here = next(files.glob("opt/milkweed/lib/python3*/site-packages"))
    assert (here / "nvidia" / "dali").is_dir() == (here / "triton").is_dir() == (VARIANT == "cuda")
    native = {path.name.partition(".")[0] for path in (here / "milkweed" / "kernels" / "_native").glob("*.so")}
    assert native == {"libmilkweed_cpu"} | ({"libmilkweed_kernels", "cuda_utils"} if VARIANT == "cuda" else set())
    for part in (".", "usr", *(f"{here.relative_to(files)}/{each}" for each in PARTS)):
        print(f"{bytes_of(files / part) / 1e6:8.0f} MB {part}")
    apt = ("var/lib/apt", "var/cache/apt")
    print(f"{(bytes_of(files) - sum(bytes_of(files / each) for each in apt)) / 1e6:8.0f} MB without apt's files")
    packed = f"tar {' '.join(f'--exclude=./{each}' for each in apt)} -c . | gzip | wc -c"
    print(f"{int(subprocess.check_output(packed, shell=True, cwd=files)) / 1e6:8.0f} MB of that in tar and gzip")


@pytest.mark.skipif(VARIANT != "cuda", reason="Triton is in the image for GPUs")
def test_triton_launches_without_a_compiler(files: Path, config: dict[str, Any], tmp_path: Path) -> None:
    """On a driver that is none, and with a /tmp from which nothing may be executed, as Docker mounts it."""
    [module] = files.glob("opt/milkweed/lib/python3*/site-packages/milkweed/kernels/_native/cuda_utils*.so")
    driver, scratch = tmp_path / "driver", tmp_path / "scratch"
    driver.mkdir(mode=0o755)
    scratch.mkdir()
    (build_empty_driver(driver, module) / "program.py").write_text(PROGRAM)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=1777", "tmpfs", scratch], check=True)
    try:
        container = Container(files, config, tmp=scratch, binds={driver: "/tmp/driver"})
        container.environment["LD_LIBRARY_PATH"] = "/tmp/driver"
        code, said = container.output("python", "/tmp/driver/program.py")
    finally:
        subprocess.run(["umount", scratch], check=True)
    assert (code, said.splitlines()[0]) == (0, "cuda_utils 2"), said


def bytes_of(path: Path) -> int:
    """The size of all files below a folder."""
    return sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())


@pytest.mark.parametrize("loader", ["auto", "dali"] if VARIANT == "cuda" else ["auto"])
def test_it_serves_as_nobody_on_a_read_only_root(files: Path, config: dict[str, Any], loader: str) -> None:
    port, metrics_port = free_port(), free_port()
    settings = {"port": port, "metrics_port": metrics_port, "device": "cpu", "loader": loader, "drain_grace_seconds": 2}
    container = Container(files, config, **settings)
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    with container.run(*config["Entrypoint"], *config["Cmd"]) as (process, child):
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert str(port) in line, process.stderr.read()
        started = time.monotonic() - began

        status = dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{child}/status").read_text(), re.MULTILINE))
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(UID)}
        assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
        mounts = [line.split()[4:6] for line in Path(f"/proc/{child}/mountinfo").read_text().splitlines()]
        assert dict(mounts)["/"].split(",")[0] == "ro"

        for path in ("/livez", "/readyz", "/startupz"):
            assert httpx.get(url + path).status_code == 200
        assert container.output(*config["Healthcheck"]["Test"][1:]) == (0, '200 {"status":"ok"}\n')
        answer = httpx.post(f"{url}/classify", content=photo(), headers={"Content-Type": "image/jpeg"})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["results"][0]["predictions"]) == 5
        metrics = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text
        assert re.search(r"^milkweed_images_total\{.*\} 1\.0$", metrics, re.MULTILINE), metrics
        peak = int(Path(f"/proc/{child}/status").read_text().split("VmHWM:")[1].split()[0])

        stopped = time.monotonic()
        os.kill(child, signal.SIGTERM)
        # Within the grace it is not ready, and still answers.
        while httpx.get(f"{url}/readyz").status_code != 503:
            pass  # it ends, by an error at the latest: nobody listens when the grace is over
        assert container.output(*config["Healthcheck"]["Test"][1:])[0] == 1
        assert httpx.post(f"{url}/classify", content=photo(), headers={"Content-Type": "image/jpeg"}).is_success
        assert process.wait(HANG_SECONDS) == 0, process.stderr.read()
        ended = time.monotonic() - stopped
    print(f"\nstart {started:.1f} s, peak {peak / 1024:.0f} MiB, SIGTERM to exit 0 {ended:.1f} s; loader {loader}")


def test_what_it_holds_can_be_asked(files: Path, config: dict[str, Any]) -> None:
    """Doctor draws its tables with a library that is not whole in `light`, and imports each runtime."""
    code, said = Container(files, config).output("milkweed", "doctor")
    assert code == 0, said
    assert (re.search(r"openvino 20\d\d\.", said) is None) == (VARIANT == "cuda"), said
    records = {path.name for path in files.glob("var/lib/dpkg/status.d/*")}
    assert {"libc6", "libssl3"} <= records or VARIANT != "light"
    assert all((files / "usr/share/doc" / each / "copyright").is_file() for each in records)


def test_the_bill_of_materials_names_what_is_installed(image: str, files: Path, tmp_path: Path) -> None:
    build("--target", "sbom", "--output", f"type=local,dest={tmp_path}")
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {normal(each["name"]): each for each in bill["components"]}
    here = next(files.glob("opt/milkweed/lib/python3*/site-packages"))
    installed = {tuple(path.stem.rsplit("-", 1)) for path in here.glob("*.dist-info")}
    assert {(name, each["version"]) for name, each in listed.items()} == {(normal(n), v) for n, v in installed}
    assert listed["milkweed"]["licenses"][0]["license"]["id"] == "Apache-2.0"
    without = sorted(name for name, each in listed.items() if not each.get("licenses"))
    print(f"\n{len(listed)} components, without a license: {without}")


def normal(name: str) -> str:
    """A package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()
