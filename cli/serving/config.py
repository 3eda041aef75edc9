"""`milkweed config` shows the settings in force and their origins, checks them, and prints the table of all."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import FAILED, one_line
from ..help import page
from ..options import Json
from ..output import print_json, print_table
from .serve import ConfigFile, warn_of_environment, with_settings

if TYPE_CHECKING:
    from ...server.config.settings import Settings

Toml = Annotated[bool, typer.Option("--toml", help="Print the settings as a file for --config.")]
CheckedFile = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Settings as TOML.", show_default=False)]


def config_app(*, with_options: bool) -> typer.Typer:
    """Build the group of commands.

    Args:
        with_options: give `show` and `check` an option for each setting.
    """
    app = typer.Typer(
        help="Show and check the settings of `milkweed serve`.\n\n\b\nExample:\n  milkweed config show --port 9000",
        rich_markup_mode=None,
    )
    app.command("show", cls=page())(with_settings(show, hidden=True) if with_options else show)
    app.command("check", cls=page())(with_settings(check, hidden=True) if with_options else check)
    app.command("table", cls=page())(table)
    return app


def show(config: ConfigFile = None, json: Json = False, toml: Toml = False, **settings: str | None) -> None:
    """Print every setting, its value and where that came from.

    Takes every option of `milkweed serve` too (see there), and reads the same variables and file. Settings name the
    files of keys and certificates; what these hold is never printed.

    \b
    Example:
      milkweed config show --config milkweed.toml --port 9000
    """
    from ...server.config.sources import load_settings, origins

    loaded, places = load_settings(settings, config), origins(settings, config)
    values = loaded.model_dump()
    if json:
        print_json({name: {"value": values[name], "from": places[name]} for name in values})
    elif toml:
        for name, value in values.items():
            comment = "" if places[name] == "default" else f"  # {one_line(places[name])}"
            print(f"{name} = {toml_value(value)}{comment}")
    else:
        print_table(("setting", "value", "from"), ((name, values[name], places[name]) for name in values))


def check(file: CheckedFile = None, config: ConfigFile = None, **settings: str | None) -> None:
    """Say what is wrong with the settings and with the files they name.

    Takes every option of `milkweed serve` too (see there), and reads what `milkweed serve --config FILE` would read,
    variables too. It looks at everything before it gives up: a line on stderr for each error. Exit code 0 if
    nothing is wrong, else 1.

    \b
    Example:
      milkweed config check milkweed.toml
    """
    loaded, errors = try_settings(settings, file or config)
    warn_of_environment(loaded)
    for line in errors:
        typer.echo(f"milkweed: error: {one_line(line)}", err=True)
    if errors:
        raise typer.Exit(FAILED)
    typer.echo("the settings are right")


def table() -> None:
    """Print the table of all settings as Markdown.

    It is the one of docs/settings.md.

    \b
    Example:
      milkweed config table
    """
    for line in settings_table():
        print(line)


def settings_table() -> list[str]:
    """Make the lines of the Markdown table, its head first: option, variable, default, description."""
    from ...server.config.settings import Settings
    from ...server.config.sources import option_of, variable_of

    rows = ["| option | variable | default | |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{option_of(name)}` | `{variable_of(name)}` | `{field.default}` | {field.description} |")
    return rows


def toml_value(value: Any) -> str:
    """Write a plain value as TOML. JSON strings are TOML strings except for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(inner)}" for key, inner in value.items()) + "}"
    return json_text.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def try_settings(flags: dict[str, Any], file: Path | None) -> "tuple[Settings | None, list[str]]":
    """Return the settings, None where they are wrong, and what is wrong with them or the files they name."""
    from ...server.config.sources import SettingsError, load_settings

    try:
        settings = load_settings(flags, file)
    except SettingsError as error:
        return None, list(error.lines)
    return settings, _wrong_files(settings)


def _wrong_files(settings: "Settings") -> list[str]:
    from ...server.config.settings import OFF
    from ...server.security.keys import read_keys
    from ...server.security.tls import make_context

    errors = []
    for name, read in (
        ("api_keys", lambda: read_keys(Path(settings.api_keys))),
        ("tls_cert", lambda: make_context(settings)),
    ):
        if getattr(settings, name) == OFF:
            continue
        try:
            read()
        except ValueError as error:
            errors.append(str(error))
    return errors
