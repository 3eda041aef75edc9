"""Records where a bundle's weights came from and what was done to them, as plain data."""

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import BundleConfig

LIBRARIES = ("milkweed", "torch", "timm", "numpy", "safetensors")


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that shape the weights, without importing them."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def add_step(
    provenance: Mapping[str, Any], command: str, arguments: Mapping[str, Any], seconds: float, **facts: Any
) -> dict[str, Any]:
    """`provenance` with one more entry in `commands`: what ran, how long, with which versions, and `facts`."""
    step = {
        "command": command,
        "arguments": dict(arguments),
        **facts,
        "seconds": round(seconds, 3),
        "versions": library_versions(),
    }
    return {**provenance, "commands": [*provenance.get("commands", ()), step]}


def made_from(
    config: "BundleConfig", command: str, arguments: Mapping[str, Any], seconds: float, **changes: Any
) -> "BundleConfig":
    """Return the config of a bundle that was made from the one of `config`, with `changes`.

    Its last step names that bundle and holds the figures that were measured on it: they do not hold for the new one.
    """
    facts = {"input_version": config.version, "input_metrics": dict(config.metrics)}
    return replace(config, provenance=add_step(config.provenance, command, arguments, seconds, **facts), **changes)
