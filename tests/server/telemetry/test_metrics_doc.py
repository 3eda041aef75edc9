"""docs/observability.md names every family that a server exports with its labels, and no other."""

import pytest

from milkweed.server.service import service
from milkweed.server.telemetry.system_metrics import collect_container_memory, collect_process_memory

from ...support.server_parts import Start
from .metrics_page import Family, documented_families

ELSEWHERE = ("container_", "gpu_", "grpc_")
"""Families of a machine or a setting that this test need not have."""


async def test_every_family_is_in_the_docs(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for collect in (collect_process_memory, collect_container_memory):  # which other tests do without
        monkeypatch.setattr(service, collect.__name__, collect)
    async with running(settings={"otlp_endpoint": "http://127.0.0.1:9"}) as app:
        registry = app.service.metrics.registry
        families = [family for family in registry.collect() if family.name.startswith("milkweed_")]
        # A family whose labels had no value yet has no sample; its collector or itself knows their names.
        makers = dict(registry._names_to_collectors)
    exported = {}
    for family in families:
        name = family.name.removeprefix("milkweed_") + ("_total" if family.type == "counter" else "")
        names = {label for sample in family.samples for label in sample.labels}
        names = names.union(*(getattr(known, "_labelnames", ()) for known in (family, makers.get(family.name))))
        exported[name] = Family(frozenset(names - {"le"}), family.type == "histogram")
    assert len(exported) > 40
    expected = documented_families()
    assert exported == {name: expected[name] for name in expected if name in exported or not name.startswith(ELSEWHERE)}
