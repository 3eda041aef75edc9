"""gRPC calls in traces: one span a call with those of its stages, the caller's context, its name for failures."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from milkweed.server.config.settings import Settings
from milkweed.server.telemetry.metrics import STAGES
from milkweed.server.telemetry.tracer import Tracer

from ...support.server_parts import Start, encoded
from .grpc_client import SERVICE, calling, refused

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the next app's spans go."""
    exporter = InMemorySpanExporter()

    def of(settings: Settings) -> Tracer:
        return Tracer(1.0, exporter)

    monkeypatch.setattr(Tracer, "of", of)
    return exporter


async def test_a_call_is_a_span_with_its_stages(running: Start, spans: InMemorySpanExporter) -> None:
    async with running() as app, calling(app) as client:
        call = client.start("ModelInfer", client.infer(encoded()), metadata=(("traceparent", f"00-{TRACE}-{SPAN}-01"),))
        await call
        trailing = dict(tuple(await call.trailing_metadata()))
        unsampled = (("traceparent", f"00-{TRACE}-{SPAN}-00"),)
        await client.start("ServerLive", client.messages.ServerLiveRequest(), metadata=unsampled)
    finished = spans.get_finished_spans()
    root, *stages = finished
    assert (root.name, root.kind) == (SERVICE.strip("/") + "/ModelInfer", SpanKind.SERVER)
    assert root.context is not None
    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, SPAN)
    assert trailing["traceresponse"] == f"00-{TRACE}-{root.context.span_id:016x}-01"
    assert root.attributes is not None
    assert dict(root.attributes) == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
        "milkweed.model": "held",
        "milkweed.images": 1,
        "milkweed.request_id": trailing["x-request-id"],
    }
    assert [stage.name for stage in stages] == list(STAGES)
    assert all(stage.parent == root.context for stage in stages)
    spent = sum((stage.end_time or 0) - (stage.start_time or 0) for stage in stages)
    assert spent == pytest.approx((root.end_time or 0) - (root.start_time or 0), rel=0.02)


async def test_failures_have_their_code(running: Start, spans: InMemorySpanExporter) -> None:
    async with running() as app, calling(app) as client:
        async with refused("NOT_FOUND"):
            await client.ask("ModelInfer", client.infer(encoded(), model="none"))
        app.service.check_accepting = lambda: 1 / 0
        async with refused("INTERNAL"):
            await client.ask("ModelInfer", client.infer(encoded()))
    found = [dict(span.attributes or {}) for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    unknown, internal = found
    assert (unknown["rpc.grpc.status_code"], unknown["milkweed.code"]) == (5, "unknown_model")
    assert "error.type" not in unknown
    assert (internal["rpc.grpc.status_code"], internal["error.type"]) == (13, "internal")
