"""What stands for the variables in a dashboard's queries and titles, as in one that was just opened."""

import re
from collections.abc import Mapping
from typing import Any

from .prometheus import Prometheus, Span

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def chosen(
    dashboard: Mapping[str, Any], source: Prometheus, span: Span, scrape_seconds: float, wanted: Mapping[str, str]
) -> dict[str, str]:
    """A value for every variable of a dashboard.

    Args:
        scrape_seconds: between two scrapes; the window of rates follows from it as in Grafana.
        wanted: values that a person gave.
    """
    window = max(span.step + scrape_seconds, 4 * scrape_seconds)
    values = {"__rate_interval": f"{window:.0f}s", "datasource": "prometheus"}
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if name in wanted:
            values[name] = wanted[name]
        elif variable["type"] == "query":
            values[name] = variable.get("allValue") or _any_of(
                source.label_values(filled(variable["query"], values), span)
            )
        elif "current" in variable:
            values[name] = variable["current"]["value"]
    return values


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with the values in place of the variables.

    Raises:
        KeyError: a variable that has no value.
    """
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], text)


def _any_of(values: list[str]) -> str:
    escaped = [re.escape(value).replace("\\", "\\\\") for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
