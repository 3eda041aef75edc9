"""The wheels of this tree serve the demo in an environment that has the core packages alone, from another folder."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = PYPROJECT["tool"]["setuptools"]["package-dir"].values()
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", *ROOMS)
SHIP = ROOT / "docs" / "pictures" / "ship.jpg"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86-64"),
]


def core(requirements: Iterable[str], packages: set[str]) -> set[str]:
    """Add the packages that these requirements bring, and what those require."""
    for requirement in map(Requirement, requirements):
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        name = canonicalize_name(requirement.name)
        if needed and name not in packages:
            packages.add(name)
            core(distribution(name).requires or (), packages)
    return packages


@pytest.fixture
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources without what was built of them."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("_native", "__pycache__", "bench"))
        else:
            shutil.copy(ROOT / name, tree)
    return tree


def installed(tree: Path, folder: Path, **variables: str) -> tuple[Path, Path]:
    """Build a wheel; it, and the `bin` of an environment with it and the core packages of this one, linked."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", folder]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MILKWEED_"))}
    subprocess.run([*build, tree], check=True, env=clean | variables)
    [wheel] = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    for package in core(PYPROJECT["project"]["dependencies"], set()):
        parts = {file.parts[0] for file in distribution(package).files or ()} - {"..", "__pycache__"}
        for part in parts:
            (site / part).symlink_to(distribution(package).locate_file(part))
    target = [*pip, f"--python={folder / 'venv'}", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(target, check=True, env=clean)
    return wheel, folder / "venv" / "bin"


def run(program: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it in an empty folder, with nothing on PATH and nothing of this process's environment."""
    folder = program.parents[2] / "elsewhere"
    folder.mkdir(exist_ok=True)
    variables = {"PATH": "/nowhere", "HOME": str(folder), **variables}
    return subprocess.run([program, *map(str, arguments)], cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_wheel_with_kernels_serves_and_classifies_the_demo(tree: Path, tmp_path: Path) -> None:
    wheel, folder = installed(tree, tmp_path)
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")] == [
        "milkweed/kernels/_native/libmilkweed_cpu.so"
    ]
    for variables in ({}, {"MILKWEED_MAX_CPU_ISA": "plain"}):
        ran = run(folder / "milkweed", "classify", SHIP, "--top-k", 1, **variables)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert re.search(r"0\.[89]\d+  ship", ran.stdout)
    ran = run(folder / "python", "-c", "import milkweed, sys; milkweed.load(); print('torch' in sys.modules)")
    assert (ran.stdout, ran.stderr) == ("False\n", "")
    ran = run(folder / "milkweed", "train", "x", "--arch", "vit_tiny_patch16_224", "--data", tmp_path)
    assert ran.stderr == f"milkweed: error: this needs PyTorch: {folder}/python -m pip install '{wheel}[models]'\n"

    arguments = ("serve", "--port", "0", "--metrics-port", "0", "--drain-grace-seconds", "0")
    with subprocess.Popen(
        [folder / "milkweed", *arguments], cwd="/", env={}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        [url] = re.findall(r"http://\S+:\d+", server.stdout.readline())
        answer = httpx.post(url + "/classify", content=SHIP.read_bytes(), headers={"content-type": "image/jpeg"})
        assert answer.json()["results"][0]["predictions"][0]["label"] == "ship"
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_wheel_without_kernels_says_in_a_line_what_to_install(tree: Path, tmp_path: Path) -> None:
    wheel, folder = installed(tree, tmp_path, CXX="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    missing = (
        f"PyTorch is not installed: {folder}/python -m pip install '{wheel}[torch]'; ",
        f"the CPU kernels are not built: {folder}/python -m milkweed.kernels.cpu.build",
    )
    for arguments in (("serve", "--port", "0", "--metrics-port", "0"), ("classify", SHIP)):
        for backend in ("default", "auto", "milkweed", "torch"):
            ran = run(folder / "milkweed", *arguments, MILKWEED_BACKEND=backend)
            [line] = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
            assert ran.returncode == 1
            assert line.startswith("milkweed: error: ")
            assert backend in ("milkweed", "torch") or all(part in line for part in missing)
    built = run(folder / "python", "-m", "milkweed.kernels.cpu.build")
    assert (built.returncode, built.stderr) == (1, "no C++ compiler c++: install g++, or name one in CXX\n")
