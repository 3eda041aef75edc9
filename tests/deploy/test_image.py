"""The image: what is installed is locked and complete, what is copied is there, and nobody runs as root."""

import fnmatch
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from milkweed.kernels.triton.driver_module import CACHE_MANAGER

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "deploy" / "image"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in PINNED.findall(text)}


def locks(name: str) -> dict[str, str]:
    return pins((LOCKS / f"{name}.txt").read_text())


def instructions(word: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line[len(word) :].strip() for line in joined.splitlines() if line.startswith(f"{word} ")]


@pytest.mark.parametrize("lock", ["cuda", "cpu", "light", "nvcc"])
def test_every_package_has_the_version_of_the_tests_and_a_hash(lock: str) -> None:
    text = (LOCKS / f"{lock}.txt").read_text()
    tested = pins((ROOT / "constraints.txt").read_text().lower())
    blocks = re.split(r"\n(?=\S)", text.strip())
    for block in blocks:
        [(name, version)] = pins(block).items()
        assert "--hash=sha256:" in block, name
        if lock != "nvcc":
            assert tested.get(name, version) == version, name
    assert "http" not in re.sub(r"http\w+==", "", text).replace("-http", "")  # names no index


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("cuda", ("dali", "grpc", "nvml", "otel")),
        ("cpu", ("grpc", "openvino", "otel", "torch")),
        ("light", ("serve",)),
    ],
)
def test_all_that_the_server_needs_is_locked_at_a_version_that_it_takes(lock: str, extras: tuple[str, ...]) -> None:
    needed = {normal(each.name): each for each in required(extras)}
    locked = locks(lock)
    # PyTorch's CPU build comes from its own index, by version.
    assert needed.keys() - locked.keys() == ({"torch"} if lock == "cpu" else set())
    for name in needed.keys() & locked.keys():
        assert needed[name].specifier.contains(locked[name]), (str(needed[name]), locked[name])


def required(extras: Iterable[str]) -> Iterator[Requirement]:
    """What the package with these extras needs; an extra may name others."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for each in map(Requirement, chain(*lists)):
        if each.name == "milkweed":
            yield from required(each.extras)
        else:
            yield each


def test_uvicorn_is_the_minor_version_that_is_tested() -> None:
    """Our server extends parts of uvicorn that are not promised to stay: another version has to be tried first."""
    [taken] = [each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "uvicorn"]
    tested = pins((ROOT / "constraints.txt").read_text().lower())["uvicorn"]
    major, minor, _ = map(int, tested.split("."))
    assert taken.specifier.contains(tested)
    assert not taken.specifier.contains(f"{major}.{minor + 1}.0")
    assert not taken.specifier.contains(f"{major}.{minor - 1}.99")


def test_variants_have_their_stages_and_the_base_is_all_that_a_tag_decides_on() -> None:
    assert {path.stem for path in LOCKS.glob("c*.txt")} == {"cpu", "cuda"}
    assert f"ARG VERSION={PROJECT['version']}\n" in DOCKERFILE
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE)
    parts, names = ("kernels", "numpy", "root"), {name for _, name in stages}
    assert names >= {"sbom", *(f"{part}-{variant}" for part in parts for variant in ("cpu", "cuda", "light"))}
    assert {base for base, _ in stages} <= names | {"${BASE}", "scratch", *(f"{part}-${{VARIANT}}" for part in parts)}
    assert "# syntax=" not in DOCKERFILE  # a frontend by a tag would be a program that builds what it likes


@pytest.mark.parametrize("lock", ["cpu", "light"])
def test_nothing_is_installed_that_the_image_is_to_do_without(lock: str) -> None:
    locked = locks(lock)
    assert not [name for name in locked if re.match("nvidia|cuda|triton|torch", name)]
    makes_models = {"torch", "timm", "safetensors", "huggingface-hub", "onnx", "onnxscript"}
    assert lock == "cpu" or not makes_models & locked.keys()
    assert "openvino" in locked


def test_what_made_the_light_image_is_taken_out_of_it() -> None:
    lines = (line for line in (LOCKS / "build.in").read_text().splitlines() if not line.startswith("#"))
    asked = {normal(each.name) for each in map(Requirement, lines)}
    [removed] = re.findall(r"pip uninstall --yes (cython [^;]*);", DOCKERFILE)
    assert asked <= set(removed.split()) <= locks("light").keys()


def test_triton_gets_the_module_that_is_compiled_where_a_compiler_is() -> None:
    [made] = re.findall(r" AS kernels-cuda\n(.*?)\nFROM ", DOCKERFILE, re.DOTALL)
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "triton" in locks("cuda")
    assert "python -m milkweed.kernels.triton.driver_module && mv milkweed/kernels/_native /native" in made
    assert f"TRITON_CACHE_MANAGER={CACHE_MANAGER}" in last
    assert "apt-get" not in last  # no compiler
    # Triton's cache is below HOME, which can be written, also where a deployment says so.
    assert "HOME=/tmp" in last
    assert "TRITON_CACHE_DIR" not in DOCKERFILE


def test_the_class_that_the_environment_names_is_there() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    module, _, name = CACHE_MANAGER.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert "CacheManager" in {each.__name__ for each in found.mro()}  # which is what Triton asks for


def test_the_compiler_is_of_the_cuda_that_pytorch_has() -> None:
    runtime = locks("cuda")["nvidia-cuda-runtime"]
    compilers = locks("nvcc")
    assert set(compilers) == {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"}
    assert {version.rpartition(".")[0] for version in compilers.values()} == {runtime.rpartition(".")[0]}


def test_what_is_copied_exists_and_passes_the_ignore_file() -> None:
    sources = [source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]]
    packages = PYPROJECT["tool"]["setuptools"]["package-dir"].values()
    assert {folder.split("/")[0] for folder in packages} <= set(sources)
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in lines, source
    assert lines[0] == "*"
    for secret in (".git", ".venv", "keys.toml", "bench", "tests"):
        shown = [line[1:] for line in lines if line.startswith("!")]
        hidden = [line for line in lines[1:] if not line.startswith("!")]
        assert secret in hidden or not any(fnmatch.fnmatch(secret, pattern) for pattern in shown), secret


def test_it_runs_as_nobody_and_is_asked_where_it_answers() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["65532:65532"]
    assert re.findall(r"^EXPOSE (.*)$", last, re.MULTILINE) == ["8000 8001"]
    assert "MILKWEED_HOST=0.0.0.0" in last
    assert 'CMD ["python", "-m", "milkweed.server.process.healthcheck"]' in last
    assert 'ENTRYPOINT ["milkweed"]' in last  # no shell between a signal and the server
