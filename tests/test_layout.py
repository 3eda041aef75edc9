"""The house: which room may import which, and that the package list names every folder."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FACADE = "facade"  # its one file is the package `milkweed` itself
SHIPPED = ("server", "client", "models", "kernels", "loaders")
ROOMS = (*SHIPPED, "bench")  # which is imported from a checkout alone, by a link beside the facade's file
MAY_IMPORT = {
    "kernels": set(),
    "loaders": set(),
    "models": {"kernels"},
    "client": set(),
    "server": {"models", "loaders"},
    FACADE: {"server"},
    "bench": {"server", "models", "loaders", "kernels"},
}
# The command `milkweed bench` is the one place that knows the bench room; the client is asked where a command asks a
# server, and gives its types to answers from this process.
ALSO = {"server/cli/bench.py": "bench"}
ALSO |= {"server/cli/classify.py": "client", "server/cli/answer_file.py": "client"}
ALSO |= {"server/local.py": "client"}


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a file imports, relative imports resolved against its place in the package."""
    folders = path.relative_to(ROOT).parent.parts
    package = ["milkweed", *(() if folders == (FACADE,) else folders)]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [stem, *(f"{stem}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            assert parts[0] not in ROOMS or parts[0] == "bench", f"{path}: import {name} without `milkweed.`"
            if parts[0] == "milkweed" and len(parts) > 1:
                rooms.add(parts[1])
    return rooms & set(ROOMS)


@pytest.mark.parametrize("room", [FACADE, *ROOMS])
def test_arrows(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        foreign = imported_rooms(path) - {room} - MAY_IMPORT[room]
        foreign.discard(ALSO.get(path.relative_to(ROOT).as_posix(), ""))
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}: {room} may not"


def test_package_list_is_the_folders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        "milkweed." + path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for room in SHIPPED
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(project["packages"]) == folders | {"milkweed"}
    assert {name: folder.replace("/", ".") for name, folder in project["package-dir"].items()} == {
        "milkweed": FACADE,
        **{name: name.removeprefix("milkweed.") for name in folders},
    }


def test_a_checkout_finds_the_bench_room() -> None:
    link = ROOT / FACADE / "bench"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "bench"
    assert "facade/bench" in (ROOT / ".dockerignore").read_text().splitlines()


def test_every_folder_with_code_is_a_package() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py: the wheel omits it"


def test_type_checkers_see_the_mapping() -> None:
    for room in ROOMS:
        link = ROOT / ".typings" / "milkweed" / room
        assert link.is_symlink()
        assert link.resolve() == ROOT / room
    facade = ROOT / ".typings" / "milkweed" / "__init__.py"
    assert facade.is_symlink()
    assert facade.resolve() == ROOT / FACADE / "__init__.py"
    assert [path.name for path in (ROOT / FACADE).glob("*.py")] == ["__init__.py"]


def test_no_file_is_called_after_nothing() -> None:
    vague = {"utils", "common", "helpers", "core", "manager"}
    for room in ROOMS:
        assert not [p for p in (ROOT / room).rglob("*.py") if p.stem in vague]
