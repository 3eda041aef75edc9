"""docs/stability.md: what it promises is what was last recorded, in interface.txt beside this file.

`MILKWEED_RECORD=1 .venv/bin/python -m pytest tests/docs/test_stability.py` records what is there now.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from milkweed.cli.bundle_args import demo_bundle
from milkweed.models.bundle.config import FORMAT, BundleConfig
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app

from ..server.telemetry.metrics_page import documented_families

RECORDED = Path(__file__).with_name("interface.txt")
# Of a loaded bundle, but not in its config.json.
NOT_IN_CONFIG = {"labels", "bytes_on_disk"}


def paths(document: Mapping[str, Any]) -> Iterator[str]:
    """Each path of an OpenAPI document, with its parameters, bodies and statuses."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "path":
                    yield f"{name} {parameter['in']} {parameter['name']}"
            yield from (f"{name} body {body}" for body in operation.get("requestBody", {}).get("content", {}))
            yield f"{name} answers {' '.join(operation['responses'])}"


def schema_fields(document: Mapping[str, Any]) -> Iterator[str]:
    """Each field of its schemas, with its type."""
    for name, schema in document["components"]["schemas"].items():
        for field, kind in schema.get("properties", {}).items():
            yield f"field {name}.{field} {type_of(kind)}"


def type_of(schema: Mapping[str, Any]) -> str:
    """A field's type in a few words."""
    if "anyOf" in schema:
        return " or ".join(sorted(map(type_of, schema["anyOf"])))
    name = schema.get("$ref", "").rpartition("/")[2] or schema.get("type", "any")
    return f"{name} of {type_of(schema['items'])}" if "items" in schema else str(name)


def interface() -> list[str]:
    """A line for each thing that is promised."""
    document = create_app(Settings(), {"demo": demo_bundle()}).openapi()
    families = documented_families().items()  # which a test of the server holds to what it exports
    members = {field.name for field in fields(BundleConfig)} - NOT_IN_CONFIG
    return sorted(
        {
            *paths(document),
            *schema_fields(document),
            *(f"metric milkweed_{name} {' '.join(sorted(family.labels))}".rstrip() for name, family in families),
            *(f"setting MILKWEED_{name.upper()}" for name in Settings.model_fields),
            *(f"bundle format {FORMAT} {name}" for name in members),
        }
    )


def test_what_is_promised_is_what_was_recorded() -> None:
    now = interface()
    if "MILKWEED_RECORD" in os.environ:
        RECORDED.write_text("\n".join(now) + "\n", encoding="utf-8")
    before = RECORDED.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    assert not gone, "promised in docs/stability.md: say in CHANGELOG.md what takes its place, and record it"
    assert not new, "record it: the first lines of this file say how"
