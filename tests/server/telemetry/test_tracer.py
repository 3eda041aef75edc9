"""Traces over the wire: spans of stages within their request's, callers' contexts, collectors that are not there."""

import asyncio
import json
import sys
import time
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from milkweed.bench.ports import free_port
from milkweed.server.config.settings import Settings
from milkweed.server.telemetry import tracer as module
from milkweed.server.telemetry.logs import JsonFormatter
from milkweed.server.telemetry.metrics import STAGES
from milkweed.server.telemetry.tracer import Tracer, TracingError

from ...support.server_parts import Start, encoded, timings
from ...support.waiting import HANG_SECONDS
from .conftest import attributes

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, INTERNAL = 2, 1  # SpanKind in OTLP is one more than the API's
ERROR = 2


def values(span: Any) -> dict[str, Any]:
    return attributes(span.attributes)


def traced(collector: Any, share: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"otlp_endpoint": collector.url, "trace_sample": share, **more}


def roots_of(collector: Any) -> list[Any]:
    """The spans of requests."""
    return [span for span in collector.spans if span.kind == SERVER]


async def test_spans_of_stages_fill_the_span_of_their_request(running: Start, collector: Any) -> None:
    before = time.time_ns()
    async with running(settings=traced(collector)) as app:
        answers = [await app.classify(encoded(seed=seed)) for seed in range(5)]
        timed = [sum(ms for name, ms in timings(answer).items() if name != "total") for answer in answers]
    after = time.time_ns()
    roots = roots_of(collector)
    assert [span.name for span in roots] == ["POST /classify"] * 5
    for answer, root, ms in zip(answers, roots, timed, strict=True):
        stages = [span for span in collector.spans if span.parent_span_id == root.span_id]
        assert [span.name for span in stages] == list(STAGES)
        assert {span.kind for span in stages} == {INTERNAL}
        assert {span.trace_id for span in stages} == {root.trace_id}
        assert len({span.span_id for span in (root, *stages)}) == 1 + len(STAGES)
        starts = [span.start_time_unix_nano for span in stages]
        ends = [span.end_time_unix_nano for span in stages]
        assert (starts[0], ends[-1]) == (root.start_time_unix_nano, root.end_time_unix_nano)
        assert starts[1:] == ends[:-1]
        total = root.end_time_unix_nano - root.start_time_unix_nano
        assert sum(end - start for start, end in zip(starts, ends, strict=True)) == pytest.approx(total, rel=0.02)
        assert total / 1e6 > 0.999 * ms  # what the client was told is part of it
        assert before <= root.start_time_unix_nano <= root.end_time_unix_nano <= after
        assert answer.headers["traceresponse"] == f"00-{root.trace_id.hex()}-{root.span_id.hex()}-01"
        assert values(root) == {
            "http.request.method": "POST",
            "http.route": "/classify",
            "http.response.status_code": 200,
            "http.request.body.size": int(answer.request.headers["content-length"]),
            "url.scheme": "http",
            "milkweed.model": "held",
            "milkweed.images": 1,
            "milkweed.request_id": answer.headers["x-request-id"],
        }
    assert {path for path, _ in collector.seen} == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "milkweed"


async def test_standard_variables_name_the_service_and_add_headers(
    running: Start, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    async with running(settings=traced(collector)) as app:
        await app.client.get("/livez")
    assert collector.resources[0]["service.name"] == "shop"
    assert collector.resources[0]["deployment.environment"] == "test"
    assert collector.seen[0][1]["x-tenant"] == "seven"


async def test_the_callers_sampling_decision_counts(running: Start, collector: Any) -> None:
    async with running(settings=traced(collector, 0.0)) as app:
        for flags in ("00", "01"):
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "a=1,b=2"}
            answer = await app.classify(headers=headers)
            assert answer.headers.get("traceresponse", "").startswith(f"00-{TRACE}-") == (flags == "01")
        nobody = await app.classify()
        assert "traceresponse" not in nobody.headers
    assert len(collector.spans) == 1 + len(STAGES)
    [root] = roots_of(collector)
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state) == (TRACE, SPAN, "a=1,b=2")


async def test_spans_tell_refusals_and_failures_apart(running: Start, collector: Any) -> None:
    async with running(settings=traced(collector)) as app:
        await app.classify(b"no picture")
        await app.client.request("BREW", "/secret%0a/path?key=1")
        app.model.failure = RuntimeError("broken")
        failed = await app.classify()
    assert failed.status_code == 500
    refused, unknown, internal = roots_of(collector)
    assert values(refused).items() >= {"http.response.status_code": 415, "milkweed.code": "unsupported_format"}.items()
    assert "error.type" not in values(refused)
    assert refused.status.code == 0
    children = [span.name for span in collector.spans if span.parent_span_id == refused.span_id]
    assert children == ["receive", "fetch", "parse"]
    assert unknown.name == "HTTP"
    assert values(unknown)["http.request.method"] == "_OTHER"
    assert "http.route" not in values(unknown)
    assert "secret" not in str(unknown)
    assert values(internal)["error.type"] == "internal"
    assert internal.status.code == ERROR


async def test_without_a_collector_every_request_is_answered(
    running: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 8)
    monkeypatch.setattr(module, "EXPORT_REQUESTS", 4)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.5)
    settings = {"otlp_endpoint": f"http://127.0.0.1:{free_port()}", "trace_sample": 1.0}
    async with running(settings=settings) as app:
        answers = await asyncio.gather(*(app.classify(encoded(seed=seed)) for seed in range(40)))
        assert [answer.status_code for answer in answers] == [200] * 40
        assert all("traceresponse" in answer.headers for answer in answers)
        exported, failed, dropped = (
            app.value("traced_requests_total", outcome=outcome) for outcome in ("exported", "failed", "dropped")
        )
        assert exported == 0 < dropped
        assert dropped + failed >= 40 - 8
    said = [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")]
    assert len(said) <= 1


async def test_a_collector_that_hangs_delays_nobody(
    running: Start, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPORT_REQUESTS", 1)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.2)
    collector.let_go.clear()
    async with running(settings=traced(collector)) as app:
        await app.client.get("/livez")
        assert await asyncio.to_thread(collector.reached.wait, HANG_SECONDS)
        for seed in range(5):
            assert (await app.classify(encoded(seed=seed))).status_code == 200
    assert not collector.spans


async def test_exemplars_lead_to_the_trace(running: Start, collector: Any) -> None:
    async with running(settings=traced(collector, 0.0)) as app:
        await app.classify()
        answer = await app.classify(headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        assert answer.status_code == 200
        text = (await app.client.get("/metrics", headers={"accept": "application/openmetrics-text"})).text
        plain = (await app.client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert [(sample.name, sample.exemplar.labels) for sample in samples if sample.exemplar is not None] == [
        ("milkweed_http_request_duration_seconds_bucket", {"trace_id": TRACE})
    ]
    assert TRACE not in plain


async def test_log_lines_of_a_traced_request_have_its_trace(
    running: Start, collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    async with running(settings=traced(collector, 0.0)) as app:
        app.service.check_accepting = lambda: 1 / 0
        for flags in ("01", "00"):
            await app.classify(b"x", headers={"traceparent": f"00-{TRACE}-{SPAN}-{flags}"})
    lines = [json.loads(line) for line in caplog.text.splitlines() if "a request failed" in line]
    assert [line.get("trace_id") for line in lines] == [TRACE, None]


def test_missing_packages_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match=r"otlp_endpoint needs .*: .*install.*otel") as raised:
        Tracer.of(Settings(otlp_endpoint="http://localhost:4318"))
    assert "\n" not in str(raised.value)


def test_no_tracer_is_made_where_traces_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tracer.of(Settings()) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert Tracer.of(Settings(otlp_endpoint="http://localhost:4318")) is None


@pytest.mark.parametrize("wrong", ["localhost:4318", "ftp://x", "http://a b", "on"])
def test_an_endpoint_that_is_no_url_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="otlp_endpoint"):
        Settings(otlp_endpoint=wrong)
