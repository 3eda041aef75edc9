"""The house: which folder may import which, how much a folder and a file hold, and how every module begins."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SDK = "sdk"  # its __init__ is the package `milkweed` itself, its folder `client` is `milkweed.client`
BENCH = "bench"  # in a checkout only: no wheel has it
ROOMS = ("kernels", "loaders", "models", "inference", "jobs", "compress", "server", SDK, "cli", BENCH)
MAY_IMPORT = {
    "kernels": set(),
    "loaders": {"kernels"},
    "models": {"kernels"},
    "inference": {"models", "loaders", "kernels/installation"},
    "jobs": {"inference", "models", "loaders"},
    "compress": {"inference", "models", "loaders", "jobs"},
    "server": {"inference", "models", "loaders", "kernels/installation"},
    SDK: {"inference", "server/config"},  # `milkweed.load` obeys the same MILKWEED_* variables as the server
    "cli": set(ROOMS) - {BENCH},
    BENCH: set(ROOMS),
}
# Lowest first: each may import those before it.
SERVER = (
    *("errors", "config", "telemetry", "security", "http/transport", "http", "fetch"),
    *("scheduler", "repository", "engine", "service", "oip", "api", "compat", "admin", "process"),
)
APART = [{"api", "admin"}, {"compat", "admin"}]  # neighbours in the order that do not know each other
MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES = 15, 300, 30
# What the house does not hold to yet: a list that may only shrink, and the lines that a room may have.
LIMITS = tomllib.loads(Path(__file__).with_name("layout_limits.toml").read_text())
NO_NAMES = {"found", "each", "given", "wanted", "taken", "own", "rest", "one"}
SUFFIXES = {".py", ".cu", ".cuh", ".h", ".cpp", ".js", ".css", ".html", ".j2", ".proto"}
VAGUE = {"utils", "common", "helpers", "core", "manager", "facade", "door"}
DANGLING = re.compile(r"(Of|That|Those|Whose|Which|Whoever) ")


def modules() -> list[Path]:
    """Every module of the rooms; bench is linked into sdk, and not looked at twice."""
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if (ROOT / SDK / BENCH) not in path.parents
    ]


def name_of(path: Path) -> str:
    """The dotted name under which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == SDK else parts
    return ".".join(["milkweed", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def folder_of(path: Path) -> str:
    """The folder that a module belongs to; a file directly in a room is the room's own, `server/errors` excepted."""
    relative = path.relative_to(ROOT)
    return "server/errors" if relative.as_posix() == "server/errors.py" else relative.parent.as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def file_imports() -> dict[Path, set[Path]]:
    """The modules that each module imports anywhere, relative imports resolved."""
    known = {name_of(path): path for path in modules()}
    graph = {}
    for path in modules():
        package = name_of(path) if path.stem == "__init__" else name_of(path).rpartition(".")[0]
        graph[path] = {known[name] for name in imported_names(path, package) & known.keys()} - {path}
    return graph


@cache
def imports() -> dict[tuple[str, str], set[str]]:
    """{(folder, imported folder): the files that import}."""
    folders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path, targets in file_imports().items():
        for target in targets:
            if folder_of(target) != folder_of(path):
                folders[folder_of(path), folder_of(target)].add(path.relative_to(ROOT).as_posix())
    return folders


def imported_names(path: Path, package: str) -> set[str]:
    """Dotted names of the modules that a file imports, and of the names in them."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {stem, *(f"{stem}.{alias.name}" for alias in node.names)}
    stray = {name for name in names if name.split(".")[0] in set(ROOMS) - {BENCH}}
    assert not stray, f"{path.relative_to(ROOT)} imports {sorted(stray)} without `milkweed.`"
    return names


def room_of(folder: str) -> str:
    return folder.partition("/")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room: str) -> None:
    for (folder, target), files in imports().items():
        if room_of(folder) == room != room_of(target):
            allowed = room_of(target) in MAY_IMPORT[room] or target in MAY_IMPORT[room]
            # The command `milkweed bench` alone knows the bench room.
            allowed |= room_of(target) == BENCH and files == {"cli/bench.py"}
            assert allowed, f"{sorted(files)} import {target}: {room} may not"


def test_folders_of_the_server_import_only_those_below() -> None:
    rank = {f"server/{folder}": place for place, folder in enumerate(SERVER)}
    for (folder, target), files in imports().items():
        if folder in rank and target in rank:
            apart = {folder.removeprefix("server/"), target.removeprefix("server/")} in APART
            below = rank[target] < rank[folder] and not apart
            assert below, f"{sorted(files)} import {target}: {folder} may not"


def test_every_folder_of_the_server_has_its_place() -> None:
    folders = {folder_of(path) for path in modules() if room_of(folder_of(path)) == "server"}
    assert folders - {"server"} == {f"server/{folder}" for folder in SERVER}


def test_no_two_folders_of_a_room_import_each_other() -> None:
    found = imports()
    for folder, target in found:
        inside = not (target + "/").startswith(folder + "/") and not (folder + "/").startswith(target + "/")
        if room_of(folder) == room_of(target) and inside:
            assert (target, folder) not in found, f"{folder} and {target} import each other"


@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_no_folder_holds_more_than_fifteen_files(room: str) -> None:
    for folder in (ROOT / room, *(path for path in (ROOT / room).rglob("*") if path.is_dir())):
        files = [path.name for path in folder.iterdir() if path.suffix in SUFFIXES]
        assert len(files) <= MAX_FILES, f"{folder.relative_to(ROOT)} holds {len(files)} files: {sorted(files)}"


def test_no_module_is_too_long() -> None:
    generated = ROOT / "server" / "oip" / "grpc_service_pb2.py"
    lines = {path: len(path.read_text().splitlines()) for path in modules() if path != generated}
    assert not {path.relative_to(ROOT).as_posix(): n for path, n in lines.items() if n > MAX_LINES}


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_begins_with_a_sentence(room: str) -> None:
    for path in modules():
        if room_of(folder_of(path)) != room or path.name.endswith("_pb2.py"):
            continue
        docstring = ast.get_docstring(tree_of(path)) or ""
        first = " ".join(docstring.partition("\n\n")[0].split())
        where = f"{path.relative_to(ROOT)}: {first!r}"
        assert re.match(r"[A-Z`]|milkweed", first), f"{where} does not begin like a sentence"
        assert first.endswith((".", ":", "?")), f"{where} does not end like a sentence"
        assert not DANGLING.match(first), f"{where} says of nothing what it is"


def test_no_file_imports_what_imports_it() -> None:
    """A folder's `__init__` that opens its files to other rooms aside."""
    order = TopologicalSorter(
        {
            path: {target for target in targets if target.stem != "__init__"}
            for path, targets in file_imports().items()
            if path.stem != "__init__"
        }
    )
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(str(path.relative_to(ROOT)) for path in error.args[1]))


def test_functions_are_short() -> None:
    """At most MAX_FUNCTION_LINES, the docstring aside."""
    long = set()
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) else None
                lines = (node.end_lineno or 0) - node.lineno + 1
                lines -= 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.add(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    listed = set(LIMITS["long_functions"])
    assert not long - listed, "not in long_functions of layout_limits.toml"
    assert not listed - long, "gone: take it out of long_functions of layout_limits.toml"


def test_no_public_name_has_two_meanings() -> None:
    """Classes and types are compared, those of bench aside: its rivals and rows have names of their own."""
    places: dict[str, list[Path]] = defaultdict(list)
    for path in modules():
        if room_of(folder_of(path)) != BENCH:
            for node in tree_of(path).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = (
                    [node.name]
                    if isinstance(node, ast.ClassDef)
                    else [t.id for t in targets if isinstance(t, ast.Name)]
                )
                for name in names:
                    if name[0].isupper() and not name.isupper():
                        places[name].append(path)
    rooms = {name: sorted(room_of(folder_of(path)) for path in paths) for name, paths in places.items()}
    # The client has its own definition of what the server answers, under the same name: neither may import the other.
    assert not {name: places[name] for name, homes in rooms.items() if len(homes) > 1 and homes != [SDK, "server"]}


def test_variables_say_what_they_hold() -> None:
    for path in modules():
        for node in ast.walk(tree_of(path)):
            name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
            name = node.arg if isinstance(node, ast.arg) else name
            assert name not in NO_NAMES, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} calls something {name}"


def test_rooms_are_within_their_lines() -> None:
    lines: Counter[str] = Counter()
    for room in LIMITS["lines"]:
        folder = ROOT / room
        for path in folder.rglob("*"):
            linked = room == SDK and ROOT / SDK / BENCH in path.parents
            if path.suffix in SUFFIXES and not linked and "__pycache__" not in path.parts:
                lines[room] += len(path.read_text().splitlines())
    over = {room: count for room, count in lines.items() if count > LIMITS["lines"][room]}
    assert not over, f"more lines than layout_limits.toml allows: {over}"


def test_no_module_is_called_after_nothing() -> None:
    assert not [path for path in modules() if path.stem in VAGUE]


@pytest.mark.parametrize("package", ["milkweed.loaders", "milkweed.models", "milkweed.models.report"])
def test_every_name_that_a_package_offers_is_there(package: str) -> None:
    module = import_module(package)
    assert [name for name in dir(module) if not hasattr(module, name)] == []
    assert module.__all__


def test_package_list_is_the_folders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name_of(path) for path in modules() if path.name == "__init__.py" and room_of(folder_of(path)) != BENCH}
    assert set(project["packages"]) == folders
    assert project["package-dir"] == {
        "milkweed": SDK,
        **{f"milkweed.{room}": room for room in ROOMS if room not in (SDK, BENCH)},
    }
    assert {path.parent for path in modules()} == {path.parent for path in modules() if path.name == "__init__.py"}


def test_type_checkers_see_the_mapping() -> None:
    typings = ROOT / ".typings" / "milkweed"
    links = {room: room for room in ROOMS if room != SDK}
    links |= {path.name: f"{SDK}/{path.name}" for path in (ROOT / SDK).glob("*.py")} | {"client": f"{SDK}/client"}
    for name, target in links.items():
        assert (typings / name).is_symlink()
        assert (typings / name).resolve() == ROOT / target
