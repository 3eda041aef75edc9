"""docs/settings.md has the table of all settings, as `milkweed config table` prints it."""

from pathlib import Path

from milkweed.cli.serving.config import settings_table

DOC = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_docs_have_the_table_of_all_settings() -> None:
    assert [line for line in DOC.read_text().splitlines() if line.startswith("|")] == settings_table()
