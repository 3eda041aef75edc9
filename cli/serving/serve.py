"""`milkweed serve` runs the service, with one option for every setting."""

import gc
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from ..bundle_args import named_bundles
from ..options import text_option
from .named_models import imported

if TYPE_CHECKING:
    from ...server.config.settings import Settings

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]BUNDLE",
        help="Bundles to serve, also timm:NAME and hf://ORG/REPO[@REVISION]; none: the demo model.",
        show_default=False,
    ),
]
Compress = Annotated[
    str | None, text_option("TARGET=N", "Search for a faster form of what is named on the hub first, as speedup=3.")
]
Photographs = Annotated[Path | None, text_option("DIR", "Photographs for --compress.")]
ConfigFile = Annotated[Path | None, text_option("FILE", "Settings as TOML; keys as the options, with '_'.")]

HEADINGS = {
    "--host": "Addresses",
    "--device": "Computing and decoding",
    "--repository": "Models",
    "--max-batch-size": "Batches, queue, limits",
    "--timeout-ms": "Time and connections",
    "--api-keys": "Who may ask",
    "--drain-grace-seconds": "The end of a process",
    "--log-level": "Logs and traces",
    "--grpc-port": "Addresses",
    "--help": "Options",
}
"""The heading of each part of the help, by the setting that begins the part, in the order of the settings."""


def serve(
    models: Models = None,
    config: ConfigFile = None,
    compress: Compress = None,
    images: Photographs = None,
    **settings: str | None,
) -> None:
    """Serve models over HTTP until stopped.

    The first bundle answers requests that name no model. Every option is also an environment variable
    (--max-batch-size is MILKWEED_MAX_BATCH_SIZE) and a key of the file; the command line goes before the
    environment, which goes before the file. What is named on the hub is imported once, into the user's cache.

    \b
    Example:
      milkweed serve --port 9000 deit=./deit-monarch
      milkweed serve timm:deit_tiny_patch16_224
    """
    from pydantic import BaseModel

    # Else FastAPI's models of OpenAPI would be built at every start, and few servers are asked for /openapi.json.
    BaseModel.model_config["defer_build"] = True
    from ...server.config.settings import OFF
    from ...server.config.sources import load_settings

    loaded = load_settings(settings, config)
    warn_of_environment(loaded)
    # The demo model is served only where no bundle and no repository is named.
    models = imported(models or [], compress, images)
    bundles = named_bundles(models) if models or loaded.repository == OFF else {}
    if not loaded.start_with_failures:
        _read_configs(bundles)
    from ...server.process.http_server import exit_now
    from ...server.process.serve import keep_memory_private, run_server

    keep_memory_private()
    gc.freeze()  # imports are no garbage, and need not be walked from now on, when the collector, off until here, is on
    gc.enable()
    # Everything is closed by now; unloading thousands of modules would delay a restart by a second and more.
    exit_now(run_server(loaded, bundles))


def _read_configs(bundles: Mapping[str, Path]) -> None:
    """Read them before the heavy imports and the port: faults in the small files of bundles are reported at once."""
    from ...models import read_config

    for path in bundles.values():
        read_config(path)


def warn_of_environment(settings: "Settings | None") -> None:
    """Say on stderr which MILKWEED_* variables have no effect."""
    from ...server.config.sources import environment_warnings

    for line in environment_warnings(settings):
        typer.echo(f"milkweed: warning: {line}", err=True)


def with_settings(command: Callable[..., None], *, hidden: bool = False) -> Callable[..., None]:
    """Replace the `**settings` of a command by an option for each field of Settings, with the field's description.

    Values stay text: the settings check them, and name the option, the value and the limit.

    Args:
        hidden: leave the options out of the help; `serve` shows them.
    """
    from ...server.config.settings import Settings

    parameters = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    "--" + name.replace("_", "-"),
                    metavar=_metavar(field.annotation),
                    help=f"{field.description} [{_spelled(field.default)}]",
                    show_default=False,
                    hidden=hidden,
                ),
            ],
        )
        for name, field in Settings.model_fields.items()
    ]

    @wraps(command)
    def with_options(**values: Any) -> None:
        command(**values)

    with_options.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
    return with_options


def _spelled(default: Any) -> str:
    """Write a default as it would be given on the command line."""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else "none" if default == {} else str(default)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if annotation is bool:
        return "true|false"
    if get_origin(annotation) is dict:
        return "NAME=VALUE,..."
    return "TEXT" if annotation is str else "N"
