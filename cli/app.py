"""Builds the typer app with all commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from .bench import add_bench
from .doctor.command import doctor
from .help import page
from .modelling.compress import compress
from .modelling.compress_options import HEADINGS as COMPRESS_HEADINGS
from .modelling.convert import convert
from .modelling.densify import densify
from .modelling.evaluate import evaluate
from .modelling.export import export
from .modelling.import_checkpoint import import_checkpoint
from .modelling.inspect import inspect
from .modelling.models import models
from .modelling.train import train
from .modelling.train_options import HEADINGS as TRAIN_HEADINGS
from .serving.classify import classify
from .serving.config import config_app
from .serving.keys import keys_app
from .serving.serve import HEADINGS as SERVE_HEADINGS
from .serving.serve import serve, with_settings


def build_app(command: str = "") -> typer.Typer:
    """Build the whole command.

    Args:
        command: the command about to run; only `serve`, `config` and `doctor` need the slow list of all settings.
    """
    app = typer.Typer(
        name="milkweed",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, one line an error
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_milkweed)
    app.command("serve", cls=page(SERVE_HEADINGS))(with_settings(serve) if command == "serve" else serve)
    app.command("doctor", cls=page())(with_settings(doctor, hidden=True) if command == "doctor" else doctor)
    app.command("classify", cls=page())(classify)
    app.command("import", cls=page())(import_checkpoint)
    app.command("compress", cls=page(COMPRESS_HEADINGS))(compress)
    app.command("convert", cls=page())(convert)
    app.command("densify", cls=page())(densify)
    app.command("export", cls=page())(export)
    app.command("train", cls=page(TRAIN_HEADINGS))(train)
    app.command("evaluate", cls=page())(evaluate)
    app.command("inspect", cls=page())(inspect)
    app.command("models", cls=page())(models)
    app.add_typer(config_app(with_options=command == "config"), name="config")
    app.add_typer(keys_app(), name="keys")
    add_bench(app)
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
