"""The rows of `milkweed doctor` by name, and a machine without a GPU that has every package."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from milkweed.cli.doctor import packages
from milkweed.cli.doctor.finding import Finding
from milkweed.cli.doctor.packages import EXTRAS
from milkweed.cli.doctor.plan import plan_findings
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import origins


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def plan(bundle: Path | None = None, **options: Any) -> dict[str, Finding]:
    """The rows about what would be served; `options` count as given on the command line."""
    settings = Settings(**{"port": 0, "metrics_port": 0, **options})
    return by_name(plan_findings(settings, origins(options), bundle))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the packages that are installed, each in version 1.0: those of all extras, to be changed."""
    names = {name for extra in EXTRAS for name in extra.packages}

    def version(name: str) -> str:
        if name not in names:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(packages, "version", version)
    return names
