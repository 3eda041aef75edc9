"""Builds the typer app: with all commands, or with `serve` alone."""

from importlib.metadata import version
from typing import Annotated

import typer

from .help import page
from .serving.serve import HEADINGS, serve, with_settings


def build_app(command: str = "") -> typer.Typer:
    """Build the whole command.

    Args:
        command: the command about to run. `serve` gets no others, which would only make its start longer; only `serve`,
            `config` and `doctor` need the slow list of all settings.
    """
    app = typer.Typer(
        name="milkweed",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, one line an error
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_milkweed)
    app.command("serve", cls=page(HEADINGS))(with_settings(serve) if command == "serve" else serve)
    if command != "serve":
        from .commands import add_commands

        add_commands(app, command)
    return app


def _print_version(show: bool) -> None:
    if show:
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
