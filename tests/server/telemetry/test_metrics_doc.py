"""docs/observability.md names every family that a server exports, and no other."""

import re
from pathlib import Path

from ...support.server_parts import Start

DOC = Path(__file__).parents[3] / "docs" / "observability.md"
ELSEWHERE = ("container_", "gpu_", "grpc_")
"""Families of a machine or a setting that this test need not have."""


async def test_every_family_is_in_the_docs(running: Start) -> None:
    named = set(re.findall(r"`([a-z_]+)`", DOC.read_text(encoding="utf-8").partition("## Traces")[0]))
    async with running(settings={"otlp_endpoint": "http://127.0.0.1:9"}) as app:
        families = [family for family in app.service.metrics.registry.collect() if family.name.startswith("milkweed_")]
    exported = {
        family.name.removeprefix("milkweed_") + ("_total" if family.type == "counter" else "") for family in families
    }
    assert len(exported) > 40
    assert exported - named == set()
    gone = named - exported - {"milkweed_", "_total", "other"}
    assert {name for name in gone if not name.startswith(ELSEWHERE)} == set()
