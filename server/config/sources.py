"""Loads settings from flags, environment (MILKWEED_*) and a file, with errors that name the source."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import did_you_mean
from .compat import VERTEX_PORT, vertex_paths, vertex_port
from .settings import OFF, Settings

ENV_PREFIX = "MILKWEED_"

OTHER_VARIABLES = frozenset(("api_key", "kernels", "max_cpu_isa", "pdl", "quarantine", "shared"))
"""Other variables named MILKWEED_...: the client's key, those of the kernels (docs/kernels.md), the tests' data."""

# What Kubernetes sets in every pod beside a Service that is called milkweed, or milkweed-SOMETHING.
_SERVICE_URI = re.compile(r"(tcp|udp|sctp)://")
_SERVICE_NAME = re.compile(r"(\w+_)?(service_(host|port)|port_\d+_(tcp|udp|sctp))(_\w+)?")


class SettingsError(ValueError):
    """A setting has an invalid value; the message is one line with the setting, the value and the limit. `lines`: all
    errors, a line each; the first one is the message."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.lines = lines


def load_settings(
    flags: Mapping[str, Any] | None = None, file: Path | None = None, *, serving: bool = True
) -> Settings:
    """Take each setting from flags, MILKWEED_* variables, `file` or its default: the first that has a value.

    Args:
        flags: values from the command line by field name; `None` means not given.
        file: TOML, keys are field names.
        serving: whether the settings are a server's. Of others, what a Kubernetes Service sets does not count.

    Raises:
        SettingsError: a line for each invalid value, with its flag, variable or key, and the limit.
    """
    options = {name: value for name, value in (flags or {}).items() if value is not None}
    from_file = read_settings_file(file) if file else {}
    environment = {name: value for name, value in settings_environment().items() if name in Settings.model_fields}
    of_services = [name for name, value in environment.items() if _SERVICE_URI.match(value) and name not in options]
    lines = [
        f"{variable_of(name)} = {environment.pop(name)!r}: Kubernetes sets this for a Service of that name; "
        "enableServiceLinks: false in the pod's spec leaves it out"
        for name in of_services
    ]
    if serving and lines:
        raise SettingsError(*lines)
    values: dict[str, Any] = {**from_file, **environment, **options}
    if serving:
        values |= _of_vertex(values)
    try:
        return Settings(**values)
    except ValidationError as error:
        below = {name: value for name, value in from_file.items() if name not in environment}
        raise SettingsError(*_lines(error, options, below, file)) from None


def _of_vertex(values: Mapping[str, Any]) -> dict[str, str]:
    """The port that Vertex AI names, where its protocol is named. Raises SettingsError for what it sets beside it."""
    if "vertex" not in str(values.get("compat")).split(","):
        return {}
    try:
        vertex_paths(os.environ)
        port = vertex_port(os.environ, None if (port := values.get("port")) is None else str(port))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return {} if port is None or "port" in values else {"port": port}


def origins(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> dict[str, str]:
    """Where `load_settings` with the same arguments takes each setting from: option, variable, file or `default`."""
    options = {name for name, value in (flags or {}).items() if value is not None}
    from_file = read_settings_file(file) if file else {}
    environment = settings_environment()
    of_vertex = _of_vertex({**from_file, **environment, **{name: (flags or {})[name] for name in options}})

    def origin(name: str) -> str:
        if name in options:
            return option_of(name)
        if name in environment:
            return variable_of(name)
        if name in of_vertex:
            return VERTEX_PORT
        return str(file) if name in from_file else "default"

    return {name: origin(name) for name in Settings.model_fields}


def option_of(name: str) -> str:
    """The command-line option of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return (ENV_PREFIX + name).upper()


def settings_environment() -> dict[str, str]:
    """The MILKWEED_* variables by the name of the setting, also of settings that do not exist."""
    upper = {name.upper(): value for name, value in os.environ.items()}
    return {
        name.removeprefix(ENV_PREFIX).lower(): value for name, value in upper.items() if name.startswith(ENV_PREFIX)
    }


def environment_warnings(settings: Settings | None) -> list[str]:
    """Name the MILKWEED_* variables that have no effect, a line each. Values may be secret, and are not in it."""
    environment, fields = settings_environment(), list(Settings.model_fields)
    others = sorted(environment.keys() - fields - OTHER_VARIABLES)
    of_services = [name for name in others if _SERVICE_URI.match(environment[name]) or _SERVICE_NAME.fullmatch(name)]
    lines = [
        f"{variable_of(name)}: there is no such setting; it has no effect" + did_you_mean(name, fields)
        for name in others
        if name not in of_services
    ]
    if of_services:
        names = ", ".join(map(variable_of, of_services))
        lines.append(f"{names}: from Kubernetes, for a Service; no effect; enableServiceLinks: false leaves them out")
    if settings is not None and settings.api_keys == OFF and "api_key" in environment:
        lines.append(
            "MILKWEED_API_KEY: a client's key; this server asks for none: MILKWEED_API_KEYS names a file of them"
        )
    return lines


def read_settings_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {file} is not TOML: {error}") from None


def _lines(error: ValidationError, flags: dict[str, Any], file: dict[str, Any], path: Path | None) -> Iterator[str]:
    """A line for every error, which names the source of the value as the source spells it."""
    for failure in error.errors(include_url=False):
        if failure["loc"]:
            yield _line([str(part) for part in failure["loc"]], failure["msg"], failure["input"], flags, file, path)
        else:
            yield from (str(failure["ctx"]["error"]) if "ctx" in failure else failure["msg"]).splitlines()


def _line(
    where: list[str], message: str, seen: Any, flags: dict[str, Any], file: dict[str, Any], path: Path | None
) -> str:
    name, *inner = where
    message = message.removeprefix("Value error, ")
    if name in flags:
        source, value = option_of(name), flags[name]
    elif name in file:
        source, value = f"{path}: {name}", file[name]
    else:
        source, value = variable_of(name), settings_environment().get(name, seen)
    if name not in Settings.model_fields:
        return f"{source} = {value!r}: there is no such setting{did_you_mean(name, list(Settings.model_fields))}"
    if inner:  # a key of a table
        source, value = ".".join((source, *inner)), seen
    return f"{source} = {value!r}: {message[0].lower()}{message[1:]} ({Settings.model_fields[name].description})"
