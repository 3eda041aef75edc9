"""Lays out the help of a command: what it does, an example, the arguments, then the options under headings."""

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

OUTPUT = dict.fromkeys(("--plot", "--out", "--force", "--json", "--help"), "Output")
"""The options that most commands end with, and their heading."""

_TYPE = re.compile(r" <[^>]*>$")
"""The Python type that typer writes behind an argument's name."""


class HelpPage(TyperCommand):
    """A command whose options stand under headings; without `headings` they are all `Options`."""

    headings: Mapping[str, str] = {}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments by their names only; newer versions of typer set them in braces."""
        pieces = super().collect_usage_pieces(ctx)
        plain = [piece.translate({ord("{"): None, ord("}"): None}) for piece in pieces]
        return [piece.replace("......", "...").replace("...]...", "...]") for piece in plain]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments first, then the options in their order, each under the last heading before it."""
        parts: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        heading = "Options"
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if param.param_type_name == "argument":
                parts["Arguments"].append((_TYPE.sub("", name), text))
                continue
            heading = next((self.headings[opt] for opt in param.opts if opt in self.headings), heading)
            parts.setdefault(heading, []).append((name, text))
        for title, records in parts.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def page(headings: Mapping[str, str] | None = None) -> type[HelpPage]:
    """Make the class of a command whose options stand under headings.

    Args:
        headings: the heading of each part, by the option that begins it; the part goes on until the next one.
    """
    if headings is None:
        return HelpPage
    return type("HelpPage", (HelpPage,), {"headings": {**OUTPUT, **headings}})
