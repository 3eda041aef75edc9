"""Tests `--help` of every command: a page within 80 columns, with an example that the command takes."""

import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from milkweed.cli.app import build_app

WIDTH = 80


def commands() -> Iterator[tuple[str, ...]]:
    """The paths of all commands; groups too."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    yield from walk(typer.main.get_command(build_app()), ())


def page(path: tuple[str, ...]) -> str:
    """The help of a command as a terminal of 80 columns shows it."""
    command: Any = typer.main.get_command(build_app(path[0] if path else ""))
    context = command.make_context("milkweed", [], resilient_parsing=True)
    for name in path:
        command = command.get_command(context, name)
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    return str(command.get_help(context))


def examples(text: str) -> list[str]:
    """The command lines of a page, lines that go on joined."""
    block = re.search(r"\n  Examples?:\n(.*?)\n\n", text, flags=re.DOTALL)
    assert block, text
    lines = re.sub(r"\\\n\s*", "", block[1]).splitlines()
    return [line.strip() for line in lines]


def parsed(line: str) -> list[str]:
    """The context's path of a command line that is parsed, but not run; raises where it is wrong usage."""
    words = shlex.split(re.split(r"[&|>]", line)[0])
    assert words.pop(0) == "milkweed"
    command: Any = typer.main.get_command(build_app(words[0]))
    path = []
    while getattr(command, "commands", None):
        command = command.commands[words[0]]
        path.append(words.pop(0))
    command.make_context(path[-1], words)
    return path


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(): os.terminal_size((WIDTH, 24)))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_a_page_fits_and_its_examples_are_taken(path: tuple[str, ...]) -> None:
    text = page(path)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert text.startswith("Usage: milkweed " + "".join(f"{name} " for name in path))
    assert "...]..." not in text
    assert not re.search(r"[{}]|<\w+(\[\w+\])?>", text), "Python's words for types"
    found = examples(text)
    assert found
    for line in found:
        assert parsed(line)[: len(path)] == list(path) or not path


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_option_says_what_it_is(path: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(build_app(path[0] if path else ""))
    for name in path:
        command = command.commands[name]
    first = command.help.splitlines()[0]
    assert first.endswith(".")
    if path:
        assert len(first) <= WIDTH - len("  classify  "), "cut short in the list of commands"
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            assert param.help, param.opts
