"""Puts the commands together."""

from importlib.metadata import version
from typing import Annotated

import typer

from .bench import app as bench
from .classify import classify
from .compress import compress
from .config import config_app
from .convert import convert
from .densify import densify
from .evaluate import evaluate
from .export import export
from .import_checkpoint import import_checkpoint
from .inspect_bundle import inspect
from .keys import keys_app
from .models import models
from .serve import serve, with_settings
from .train import train


def build_app(command: str = "") -> typer.Typer:
    """The whole command.

    Args:
        command: the one about to run; only `serve` and `config` pay for reading the list of all settings.
    """
    app = typer.Typer(
        name="milkweed",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, one line an error
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_milkweed)
    app.command("serve")(with_settings(serve) if command == "serve" else serve)
    app.command("import")(import_checkpoint)
    app.command("compress")(compress)
    app.command("convert")(convert)
    app.command("densify")(densify)
    app.command("export")(export)
    app.command("train")(train)
    app.command("evaluate")(evaluate)
    app.command("inspect")(inspect)
    app.command("classify")(classify)
    app.command("models")(models)
    app.add_typer(config_app(with_options=command == "config"), name="config")
    app.add_typer(keys_app(), name="keys")
    app.add_typer(bench, name="bench")
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"milkweed {version('milkweed')}")
        raise typer.Exit


def _milkweed(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve and make Monarch-compressed vision models.

    \b
    Example:
      milkweed serve &
      milkweed classify photo.jpg --url http://localhost:8000
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
