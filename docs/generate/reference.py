"""Pages made from the code itself: the commands, the HTTP interface, the Python interface."""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer

from milkweed import client
from milkweed.cli.app import build_app
from milkweed.models import _HOMES as HOMES


def commands_page() -> str:
    """Every command: what it does, what it takes, an example."""
    command = typer.main.get_command(build_app())
    lines = ["# Commands", "", "Made from the program itself; `--help` says the same.", ""]
    for path, each in _commands("milkweed", command):
        lines += [f"## {path}", "", *_help(each.help or ""), *_parameters(each)]
        if path == "milkweed serve":
            lines += ["Every [setting](../settings.md) is an option too.", ""]
        if path in ("milkweed config show", "milkweed config check"):
            lines += ["Takes the options of `milkweed serve` too.", ""]
    return "\n".join(lines)


def http_page() -> str:
    """The OpenAPI document of a server with the default settings."""
    from milkweed.cli.bundle_args import demo_bundle
    from milkweed.server.config.settings import Settings
    from milkweed.server.process.service_app import create_app

    document = create_app(Settings(), {"demo": demo_bundle()}).openapi()
    lines = ["# HTTP interface", "", "Made from the server's own OpenAPI document, which a server has at", ""]
    lines[2] += " `/openapi.json`. [HTTP](../http.md) explains it."
    for path, item in document["paths"].items():
        for method, operation in item.items():
            lines += [f"## {method.upper()} {path}", "", *_operation(operation)]
    lines += ["## Schemas", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", schema.get("description", ""), "", *_fence("json", json.dumps(schema, indent=2))]
    return "\n".join(lines)


def python_page() -> str:
    """`milkweed.load`, the client and what `milkweed.models` offers, by mkdocstrings."""
    lines = ["# Python", "", "Nothing heavy is imported before a name is used.", "", "## milkweed", ""]
    lines += ["::: milkweed.load", "", "::: milkweed.local.LocalModel", "", "## milkweed.client", ""]
    for name in client.__all__:
        if isinstance(getattr(client, name), type):
            lines += [f"::: {_defined('milkweed.client', name)}", ""]
    lines += ["## milkweed.models", ""]
    for home, names in HOMES.items():
        for name in names:
            lines += [f"::: {_defined(f'milkweed.models.{home}', name)}", ""]
    return "\n".join(lines)


def _defined(module: str, name: str) -> str:
    """The place where a name is written, not where it is offered: mkdocstrings reads sources."""
    found = getattr(importlib.import_module(module), name)
    return f"{getattr(found, '__module__', module)}.{name}"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(f"{path} {name}", inner)
        elif not inner.hidden:
            yield f"{path} {name}", inner


def _help(text: str) -> Iterator[str]:
    """A command's docstring; what stands behind click's mark for "as it is" are examples."""
    for block in re.split(r"\n\s*\n", text.strip()):
        if not block.startswith("\b"):
            yield from (" ".join(block.split()), "")
            continue
        title, _, shown = block.lstrip("\b\n").partition("\n")
        yield from (title, "", *_fence("sh", dedent(shown)))


def _parameters(command: Any) -> list[str]:
    rows = []
    for each in command.params:
        if each.name in ("help", "settings"):  # settings are on a page of their own
            continue
        value = each.metavar
        if each.param_type_name == "argument":
            name = f"`{value}`"
        else:
            names = (*each.opts, *each.secondary_opts)
            name = ", ".join(f"`{option}`" if each.is_flag else f"`{option} {value}`" for option in names)
        rows.append((name, each.help or "", _default(each)))
    return _table(("", "", "default"), rows)


def _default(parameter: Any) -> str:
    value = parameter.default
    value = ",".join(map(str, value)) if isinstance(value, tuple) else value
    plain = isinstance(value, str | int | float | Path) and not isinstance(value, bool) and value != ""
    return f"`{value}`" if plain else ""


def _operation(operation: Mapping[str, Any]) -> Iterator[str]:
    for text in (operation.get("summary"), operation.get("description")):
        if text:
            yield from (text, "")
    rows = [
        (f"`{p['name']}`", p["in"], _schema(p["schema"]), p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    yield from _table(("parameter", "in", "type", ""), rows)
    bodies = operation.get("requestBody", {}).get("content", {})
    yield from _table(
        ("body", "type"), [(f"`{kind}`", _schema(body.get("schema", {}))) for kind, body in bodies.items()]
    )
    answers = []
    for status, answer in operation["responses"].items():
        types = ", ".join(
            f"`{kind}` {_schema(body.get('schema', {}))}" for kind, body in answer.get("content", {}).items()
        )
        headers = ", ".join(f"`{name}`" for name in answer.get("headers", {}))
        answers.append((status, answer.get("description", ""), types, headers))
    yield from _table(("status", "", "body", "headers"), answers)


def _schema(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    inner = [_schema(one) for word in ("anyOf", "oneOf") for one in schema.get(word, ())]
    return " or ".join(inner) or str(schema.get("format") or schema.get("type", ""))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [head, ("---",) * len(head), *rows]
    return [*("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines), ""]


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _fence(language: str, text: str) -> tuple[str, ...]:
    return (f"```{language}", text, "```", "")
