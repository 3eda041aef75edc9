"""Records where a bundle's weights came from and what was done to them, as plain data."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

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
