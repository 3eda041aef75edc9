"""The help of a command as a page: what it does, an example, arguments, then options under headings."""

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

OUTPUT = dict.fromkeys(("--plot", "--out", "--force", "--json", "--help"), "Output")
"""What most commands have, and have last."""

_TYPE = re.compile(r" <[^>]*>$")
"""What typer writes behind an argument's name: Python's word for its type."""


class HelpPage(TyperCommand):
    """A command without headings: all its options are `Options`."""

    headings: Mapping[str, str] = {}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments by their names alone; newer typers set them in braces."""
        pieces = super().collect_usage_pieces(ctx)
        plain = [piece.translate({ord("{"): None, ord("}"): None}) for piece in pieces]
        return [piece.replace("......", "...").replace("...]...", "...]") for piece in plain]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, then options in their order, under the heading that was last."""
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
    """A command whose options stand under headings.

    Args:
        headings: by the option that begins a part, its heading; the part goes on until the next.
    """
    if headings is None:
        return HelpPage
    return type("HelpPage", (HelpPage,), {"headings": {**OUTPUT, **headings}})
