"""docs/runbook.md: a section an alert, and nothing in it that is not there."""

import re
from pathlib import Path

import pytest

from .test_prometheus import RULES, SERIES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text(encoding="utf-8")
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((*(ROOT / "server").rglob("*.py"), *(ROOT / "inference").rglob("*.py")))
)
_, *SECTIONS = re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)
# Options of other commands than `serve`.
OTHERS_OPTIONS = {"--previous"}


def test_every_alert_has_a_section_and_every_section_an_alert_in_one_order() -> None:
    alerts = list(dict.fromkeys(rule["alert"] for rule in RULES if "alert" in rule))
    assert [section.partition("\n")[0] for section in SECTIONS] == alerts


def test_options_and_variables_are_settings() -> None:
    settings = set(re.findall(r"`(--[a-z0-9-]+|MILKWEED_\w+)`", (DOCS / "settings.md").read_text(encoding="utf-8")))
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+|MILKWEED_\w+)", RUNBOOK))
    assert len(named) > 20
    assert named - OTHERS_OPTIONS <= settings


def test_series_are_exported_or_recorded() -> None:
    named = set(re.findall(r"(?:[a-z_]+:)?milkweed_\w+(?::\w+)?", RUNBOOK))
    assert len(named) >= 25
    assert named <= {name.removesuffix("_bucket") for name in SERIES}


@pytest.mark.parametrize(
    "said",
    [
        "only a restart brings it back",
        "forwards failed in a row: the device is lost",
        "the engine thread was ended; what it had in hand is lost",
        "could not be decoded",
        "images failed",
        "the model gave probabilities that are not finite numbers",
        "cannot be served, what is sound goes on",
        "the new file is not used, the old one stays in force",
        "milkweed: error: ",
    ],
)
def test_a_line_to_look_for_in_the_log_is_one_that_is_written(said: str) -> None:
    assert said in " ".join(RUNBOOK.split())
    assert said in CODE
