"""docs/settings.md has a row for every setting, as the settings are."""

import re
from pathlib import Path

from milkweed.server.settings import ENV_PREFIX, Settings

DOC = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def row(name: str) -> str:
    field = Settings.model_fields[name]
    return f"| `--{name.replace('_', '-')}` | `{ENV_PREFIX}{name.upper()}` | `{field.default}` | {field.description} |"


def test_every_setting_has_its_row() -> None:
    found = [line for line in DOC.read_text().splitlines() if re.match(r"\| `--", line)]
    assert found == [row(name) for name in Settings.model_fields]
