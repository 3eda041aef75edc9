"""Loads settings from flags, environment (MILKWEED_*) and a file, with errors that name the source."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .settings import Settings

ENV_PREFIX = "MILKWEED_"


class SettingsError(ValueError):
    """A setting has an invalid value; the message is one line with the setting, the value and the limit. `lines`: all
    errors, a line each; the first one is the message."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.lines = lines


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Take each setting from flags, MILKWEED_* variables, `file` or its default: the first that has a value.

    Args:
        flags: values from the command line by field name; `None` means not given.
        file: TOML, keys are field names.

    Raises:
        SettingsError: a line for each invalid value, with its flag, variable or key, and the limit.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    from_file = read_settings_file(file) if file else {}
    environment = {name: value for name, value in settings_environment().items() if name in Settings.model_fields}
    try:
        return Settings(**{**from_file, **environment, **given})
    except ValidationError as error:
        below = {name: value for name, value in from_file.items() if name not in environment}
        raise SettingsError(*_lines(error, given, below, file)) from None


def origins(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> dict[str, str]:
    """Where `load_settings` with the same arguments takes each setting from: option, variable, file or `default`."""
    given = {name for name, value in (flags or {}).items() if value is not None}
    from_file = read_settings_file(file) if file else {}
    environment = settings_environment()

    def origin(name: str) -> str:
        if name in given:
            return option_of(name)
        if name in environment:
            return variable_of(name)
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


def read_settings_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {file} is not TOML: {error}") from None


def _lines(error: ValidationError, flags: dict[str, Any], file: dict[str, Any], path: Path | None) -> Iterator[str]:
    """A line for every error, which names the source of the value as the source spells it."""
    for found in error.errors(include_url=False):
        if found["loc"]:
            yield _line([str(part) for part in found["loc"]], found["msg"], found["input"], flags, file, path)
        else:
            yield from (str(found["ctx"]["error"]) if "ctx" in found else found["msg"]).splitlines()


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
        return f"{source} = {value!r}: there is no such setting"
    if inner:  # a key of a table
        source, value = ".".join((source, *inner)), seen
    return f"{source} = {value!r}: {message[0].lower()}{message[1:]} ({Settings.model_fields[name].description})"
