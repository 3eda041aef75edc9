"""Metrics: stages add up to the whole, label sets stay closed, everything named in the docs is there."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from milkweed.inference.results import SCORE_BYTES
from milkweed.models import Label
from milkweed.server.repository.served_model import MOST_LABELS
from milkweed.server.service.model_metrics import record_model
from milkweed.server.telemetry.metrics import STAGES

from ...support.server_parts import HeldModel, Running, Start, broken, encoded, make_config, make_pipeline, until


async def scrape(app: Any) -> dict[str, Any]:
    answer = await app.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


async def test_a_scrape_has_the_process_too(app: Running) -> None:
    await app.classify()
    families = await scrape(app)
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= set(families)


async def test_stages_add_up_to_the_request(app: Running) -> None:
    for seed in range(20):
        await app.classify(encoded(seed=seed))
    await app.classify(files=[("i", ("a", encoded(seed=s), "image/png")) for s in range(20)])
    name = "request_stage_duration_seconds"
    stages = {stage: app.value(f"{name}_sum", model="held", stage=stage) for stage in STAGES}
    counts = {app.value(f"{name}_count", model="held", stage=stage) for stage in STAGES}
    labels = {"route": "/classify", "method": "POST", "code": "200"}
    total = app.value("http_request_duration_seconds_sum", **labels)
    assert counts == {21} == {app.value("http_request_duration_seconds_count", **labels)}
    assert sum(stages.values()) == pytest.approx(total, rel=1e-6)
    assert [stage for stage, seconds in stages.items() if not seconds > 0] == ["fetch"]


async def test_batches_and_images_are_counted(running: Start) -> None:
    async with running(settings={"max_batch_size": 4}) as app:
        await app.classify(encoded("JPEG"))
        files = [("i", ("a", encoded(), "image/png"))] * 10 + [("i", ("a", broken(), "image/png"))]
        await app.classify(files=files)
        await until(lambda: app.value("batch_size_count", model="held") == 4)
        assert app.value("batch_size_sum", model="held") == 12
        assert app.value("batches_total", model="held", reason="full") == 2
        assert app.value("batches_total", model="held", reason="idle_device") == 2
        assert app.value("images_total", model="held", outcome="ok") == 11
        assert app.value("images_total", model="held", outcome="invalid") == 1
        assert app.value("decode_backend_images_total", backend="pillow", format="JPEG") == 1
        assert app.value("decode_backend_images_total", backend="pillow", format="PNG") == 10
        assert app.value("engine_busy_seconds_total", device="cpu") > 0
        assert app.value("http_request_body_bytes_count", route="/classify", format="raw") == 1
        assert app.value("http_request_body_bytes_count", route="/classify", format="multipart") == 1


async def test_labels_stay_closed_whatever_clients_send(app: Running) -> None:
    await scrape(app)

    async def series() -> set[tuple[str, ...]]:
        return {
            (sample.name, *sorted(sample.labels.values()))
            for family in (await scrape(app)).values()
            for sample in family.samples
        }

    for method, path in (("BREW", "/a"), ("POST", "/classify?model=x")):
        await app.client.request(method, path)
    before = await series()
    for number in range(5):
        await app.client.request(f"BREW{number}", f"/path{number}")
        await app.client.post(f"/classify?model=x{number}", headers={"x-request-id": f"id{number}"})
    assert await series() == before


async def test_model_bytes_and_identity_are_exported(running: Start) -> None:
    async with running(settings={"model_limits": {"held": {"timeout_ms": 500}}}) as app:
        version = make_config().version
        bytes_of = {
            form: app.value("model_parameter_bytes", model="held", version=version, form=form)
            for form in ("dense_equivalent", "resident", "on_disk")
        }
        assert bytes_of == {"dense_equivalent": 4000, "resident": 112, "on_disk": 1234}
        assert app.value("model_ready", model="held", version=version) == 1
        assert app.value("request_timeout_seconds", model="held") == 0.5
        families = await scrape(app)
    [info] = families["milkweed_model_info"].samples
    assert info.labels == {
        "model": "held",
        "version": version,
        "arch": "held",
        "dtype": "float32",
        "device": "cpu",
        "loader": "pillow",
        "backend": "torch",
        "monarch_blocks": "0",
        "sha256_12": version,
    }


async def test_metrics_are_compressed_for_clients_that_accept_gzip(app: Running) -> None:
    for accept in ("text/plain", "application/openmetrics-text"):
        headers = {"accept": accept, "accept-encoding": "identity"}
        plain = await app.client.get("/metrics", headers=headers)
        packed = await app.client.get("/metrics", headers={**headers, "accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["content-type"] == plain.headers["content-type"]
        assert int(packed.headers["content-length"]) < len(plain.content) / 4
        assert packed.text.splitlines()[:2] == plain.text.splitlines()[:2]


async def test_in_flight_and_held_bytes_return_to_zero(app: Running) -> None:
    request = await app.hold()
    assert app.value("http_requests_in_flight", route="/classify") == 1
    assert app.value("http_buffered_body_bytes") == len(encoded()) + 5 * SCORE_BYTES  # the body and its answer
    app.model.gate.set()
    await request
    assert app.value("http_requests_in_flight", route="/classify") == 0
    assert app.value("http_buffered_body_bytes") == 0


async def test_a_collector_that_fails_costs_a_scrape_only_its_own_series(
    app: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(index: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    for name, said in (("is_available", True), ("is_initialized", True), ("device_count", 1)):
        monkeypatch.setattr(torch.cuda, name, lambda said=said: said)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    answer = await app.client.get("/metrics")
    monkeypatch.undo()
    assert answer.status_code == 200
    assert 'milkweed_engine_up{device="cpu"} 1.0' in answer.text
    assert "milkweed_gpu_memory_bytes{" not in answer.text
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


async def test_confidence_and_classes_of_answers_are_counted(app: Running) -> None:
    rows = [(await app.classify(encoded(seed=seed))).json()["results"][0]["predictions"][0] for seed in range(8)]
    await app.classify(broken())
    name = "prediction_confidence"
    assert app.value(f"{name}_count", model="held") == 8
    assert app.value(f"{name}_sum", model="held") == pytest.approx(sum(row["score"] for row in rows), rel=1e-6)
    for tenth in ("0.2", "0.5", "0.9"):
        below = sum(row["score"] <= float(tenth) for row in rows)
        assert app.value(f"{name}_bucket", model="held", le=tenth) == below
    for label, count in Counter(row["label"] for row in rows).items():
        assert app.value("predictions_total", **{"model": "held", "class": label}) == count


async def test_classes_are_counted_where_they_are_few(running: Start) -> None:
    async with running() as app:
        model = app.service.models["held"]
        for classes, counted in ((MOST_LABELS, MOST_LABELS), (MOST_LABELS + 1, 0)):
            labels = tuple(Label(str(index), f"class {index}") for index in range(classes))
            about = replace(model.config, arch_args={"num_classes": classes}, labels=labels)
            pipeline = make_pipeline(HeldModel(classes), classes=classes)
            other = replace(model, name=f"of {classes}", config=about, pipelines={0: pipeline})
            record_model(app.service.metrics, app.service.settings, other)
            assert len(app.service.metrics.model(other.name).predictions) == counted
