"""What can be said of a command without running it: its options, files, targets and extras are there."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from itertools import pairwise

import typer

from milkweed.cli.app import build_app
from milkweed.server.config.sources import load_settings

from .blocks import ROOT, words

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def check(command: str, usage: Callable[[str], str]) -> None:
    """Raise where a command names what is not there.

    Args:
        usage: what `python -m MODULE --help` prints.
    """
    for part in re.split(r" && | \| ", command):
        parts = [word for word in words(part) if word != "..."]
        while parts and (re.fullmatch(r"[A-Z_]+=.*", parts[0]) or parts[0] in BEFORE):
            parts.pop(0)
        while parts and parts[0].startswith("--"):  # of what stood before
            parts.pop(0)
            parts = parts[1:] if parts and parts[0].isdigit() else parts
        if parts:
            program = parts[0].rsplit("/", 1)[-1]
            CHECKS.get(program, lambda *_: None)(parts[1:], usage)


BEFORE = {"torchrun", "compute-sanitizer", "racecheck"}
"""Programs that start another one."""


def _milkweed(args: list[str], usage: Callable[[str], str]) -> None:
    name, command = "milkweed", typer.main.get_command(build_app(args[0]))
    while hasattr(command, "commands"):
        name = args.pop(0)
        command = command.commands[name]
    given = command.make_context(name, args).params
    if name == "serve":
        beside = ("models", "config", "compress", "images")
        load_settings({key: value for key, value in given.items() if key not in beside}, None)


def _python(args: list[str], usage: Callable[[str], str]) -> None:
    if args[0] != "-m":
        assert (ROOT / args[0]).is_file(), args[0]
    elif args[1].startswith("milkweed."):
        said = usage(args[1])
        for option in (arg.partition("=")[0] for arg in args if arg.startswith("--")):
            assert re.search(rf"{option}\b", said), f"{args[1]} has no {option}"


def _make(args: list[str], usage: Callable[[str], str]) -> None:
    subprocess.run(["make", "--dry-run", *args], cwd=ROOT, check=True, capture_output=True)


def _pip(args: list[str], usage: Callable[[str], str]) -> None:
    for arg in args:
        assert not arg.startswith("milkweed"), f"{arg}: milkweed is not on PyPI"
        extras = re.fullmatch(r"\.\[(.+)\]", arg)
        assert not extras or set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"]), arg


def _kubectl(args: list[str], usage: Callable[[str], str]) -> None:
    if "-k" in args:
        assert (ROOT / args[args.index("-k") + 1] / "kustomization.yaml").is_file(), args


def _docker(args: list[str], usage: Callable[[str], str]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for option, value in pairwise(args):
        if option == "-f":
            assert value == "mine.yaml" or (ROOT / value).is_file(), value
        if option == "--build-arg":
            assert f"ARG {value.partition('=')[0]}" in dockerfile, value
        if option == "--target":
            assert re.search(rf"^FROM .* AS {value}$", dockerfile, re.MULTILINE), value


def _serve(args: list[str], usage: Callable[[str], str]) -> None:
    assert all((ROOT / arg).is_file() for arg in args if arg.endswith(".yaml")), args


CHECKS = {
    "milkweed": _milkweed,
    "python": _python,
    "make": _make,
    "pip": _pip,
    "kubectl": _kubectl,
    "docker": _docker,
    "serve": _serve,
}
