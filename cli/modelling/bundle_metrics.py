"""Writes what was measured into a bundle's config.json. No hash covers figures: the version stays the same."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CommandError

if TYPE_CHECKING:
    from ...models.confidence import ConfidenceThreshold

EVALUATIONS = "evaluations"
"""The member of `metrics` that has one entry for each data set, by the name of its folder."""


def record_evaluation(bundle: Path, version: str, name: str, figures: Mapping[str, Any]) -> None:
    """Put `figures` under `metrics.evaluations.<name>`, whole or not at all.

    Args:
        version: the version of the bundle that was measured.

    Raises:
        CommandError: the bundle has changed since.
        BundleError: the bundle cannot be read.
    """

    def recorded(document: dict[str, Any]) -> None:
        metrics = document["metrics"]
        earlier = metrics.get(EVALUATIONS)
        metrics[EVALUATIONS] = {**(earlier if isinstance(earlier, dict) else {}), name: dict(figures)}

    _change(bundle, version, recorded)


def record_threshold(
    bundle: Path, version: str, confidence: "ConfidenceThreshold", arguments: Mapping[str, Any], seconds: float
) -> None:
    """Write from which score on the bundle's answers are sure, which makes another version of it, and by which command.

    Args:
        arguments, seconds: of the evaluation.

    Raises:
        BundleError, CommandError: as `record_evaluation`.
    """
    from ...models.bundle.provenance import add_step

    def changed(document: dict[str, Any]) -> None:
        facts = {"input_version": version}
        document["provenance"] = add_step(document["provenance"], "evaluate", arguments, seconds, **facts)
        document["confidence"] = confidence.to_dict()

    _change(bundle, version, changed)


def _change(bundle: Path, version: str, change: Callable[[dict[str, Any]], None]) -> None:
    from ...models import read_config
    from ...models.bundle.strict_json import parse_json, readable_json

    config = read_config(bundle)
    if config.version != version:
        raise CommandError(
            f"bundle {bundle}: is version {config.version} now, {version} was measured: nothing recorded"
        )
    path = bundle / "config.json"
    document = parse_json(path.read_bytes())
    change(document)
    _replace(path, readable_json(document))
    read_config(bundle)


def _replace(path: Path, data: bytes) -> None:
    """Write a new file beside `path`, then let it take its place: a reader sees the old or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(new, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, path.stat().st_mode & 0o777)
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
