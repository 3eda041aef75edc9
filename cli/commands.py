"""All commands but `serve`, and their order in the help."""

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
from .serving.demo import demo
from .serving.embed import embed
from .serving.head import head_app
from .serving.keys import keys_app
from .serving.serve import with_settings


def add_commands(app: typer.Typer, command: str) -> None:
    """Add them to the app.

    Args:
        command: the one about to run.
    """
    app.command("doctor", cls=page())(with_settings(doctor, hidden=True) if command == "doctor" else doctor)
    app.command("classify", cls=page())(classify)
    app.command("embed", cls=page())(embed)
    further = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("demo", cls=page(), context_settings=further)(demo)
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
    app.add_typer(head_app(), name="head")
    app.add_typer(keys_app(), name="keys")
    add_bench(app)
