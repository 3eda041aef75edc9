"""The whole service beside its parts: rows of a dry run, what they say of failures, and memory that grows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.bench.bodies import made_jpegs
from milkweed.bench.gpu.__main__ import COMPLETE, main
from milkweed.bench.gpu.goals import judge
from milkweed.bench.gpu.journal import read, rows
from milkweed.bench.gpu.plan import Task
from milkweed.bench.gpu.served import DRY, Scale, Service
from milkweed.bench.load.plan import Plan
from milkweed.bench.server.benched_server import BenchedServer
from milkweed.bench.server.request import Request

PARTS = ("decode", "forward", "ingest")


@pytest.mark.slow
def test_a_dry_run_serves_a_model_and_measures_it_beside_its_parts(tmp_path: Path) -> None:
    for number, body in enumerate(made_jpegs(2)):
        (tmp_path / f"{number}.jpg").write_bytes(body)
    out = tmp_path / "day.jsonl"
    arguments = ["--dry-run", "--out", str(out), "--photos", str(tmp_path), "--plan", "minutes=all,sections=served"]
    assert main(arguments) == COMPLETE, out.with_suffix(".log").read_text()
    for turn in (1, 2):
        found = {row["candidate"]: row for row in rows(read(out)) if row.get("round") == turn}
        assert [*found] == ["one JPEG", *PARTS, "end to end", *(["weights", "growth"] if turn == 1 else [])]
        assert all(row["passed"] for row in found.values())
        rates = {name: row["figures"].get("images_per_second") for name, row in found.items()}
        slowest = min(PARTS, key=lambda name: rates[name])
        whole = found["end to end"]
        assert whole["figures"]["of_the_limit"] == pytest.approx(rates["end to end"] / rates[slowest], rel=1e-3)
        assert whole["note"] == f"the limit is {slowest}"
        figures = found["one JPEG"]["figures"]
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    (weights, growth) = (row["figures"] for row in rows(read(out)) if row["candidate"] in ("weights", "growth"))
    # A ViT of two blocks, width 64, 17 tokens, patches of 8, 10 classes.
    block = 12 * 64 * 64 + 13 * 64
    parameters = 2 * block + (3 * 64 + 1) * 64 + 18 * 64 + 2 * 64 + 65 * 10
    assert weights["of_dense"] == 1.0
    assert weights["weights_mb"] == pytest.approx(2e-6 * parameters, rel=0.02)
    assert growth["images"] == DRY.images


class Load:
    """A server under load that answers some images of each row, grows by some MB in each, and has done some wrong."""

    plan = Plan((("127.0.0.1", 1),), "/classify", (), 1.0)

    def __init__(self, *, answered: int, mb: float, lost: int = 0) -> None:
        self.answered, self.mb, self.lost, self.held = answered, mb, lost, 500.0
        self.rows: list[dict[str, Any]] = []

    def row(self, section: str, what: str, plan: Plan) -> dict[str, Any]:
        self.held += self.mb
        good = {"good_sent": self.answered, "good_failed": 0, "wrong_answers": 0, "refusals_without_retry_after": 0}
        found = {"section": section, "what": what, **good, "lost": self.lost, "client_late": False}
        self.rows.append({**found, "statuses": {"200": min(self.answered, plan.requests)}})
        return self.rows[-1]

    def rss_mb(self) -> float:
        return self.held


def service(load: Any, scale: Scale = DRY) -> Service:
    pipeline: Any = SimpleNamespace(forward_stage=SimpleNamespace(resident_bytes=36), dense_bytes=100)
    return Service(scale, Task("", dry_run=True), [], pipeline, load)


def grown(**load: Any) -> dict[str, Any]:
    """The row of memory that grows, as `Service.memory` writes it."""
    weights, growth = service(Load(**load)).memory()
    assert weights["figures"]["of_dense"] == 0.36
    return {**growth, "section": "served", "round": 1}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    return next(goal for goal in judge([row]) if "leave behind" in goal["goal"])


def test_one_image_alone_is_sent_by_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def row(self: BenchedServer, section: str, what: str, plan: Plan) -> dict[str, Any]:
        asked.append((self.request.clients, plan.connections))
        return {"latency_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0}}

    monkeypatch.setattr(BenchedServer, "row", row)
    (found,) = service(BenchedServer("x", Load.plan, Request(clients=4)), Scale()).latency()
    assert asked == [(1, 1)]  # each client has a connection of its own
    assert found["figures"] == {"p50_ms": 1.0, "p99_ms": 3.0}


def test_memory_that_grows_misses_its_goal() -> None:
    assert judged(grown(answered=10**6, mb=63.0))["met"] is True
    leaking = judged(grown(answered=10**6, mb=65.0))
    assert (leaking["met"], leaking["measured"]) == (False, 65.0)


def test_memory_over_fewer_images_proves_nothing() -> None:
    row = grown(answered=99, mb=0.0)
    assert row["note"] == "99 images in 120 s, not 100"
    assert judged(row)["why"] == "round 1: 99 images in 120 s, not 100"


def test_a_request_that_is_lost_is_a_failed_check() -> None:
    row = grown(answered=10**6, mb=0.0, lost=2)
    assert row["passed"] is False
    assert "memory (after): 2 requests lost" in row["note"]
