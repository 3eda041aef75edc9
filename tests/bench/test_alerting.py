"""Alerts on trial, without the programs: every alert has a fault or a reason, and what became of it is told right."""

import json
import os
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from milkweed.bench import alerts
from milkweed.bench.alerting.faults import obedience
from milkweed.bench.alerting.faults.catalogue import FAULTS, NOISE, NOT_MADE
from milkweed.bench.alerting.faults.cgroup import Cgroup
from milkweed.bench.alerting.faults.fault import page, ticket
from milkweed.bench.alerting.faults.levers import Levers
from milkweed.bench.alerting.local_server import LocalServer
from milkweed.bench.alerting.observer import Course, Observer
from milkweed.bench.alerting.patience import wait_until
from milkweed.bench.alerting.programs import FOLDER, find_programs
from milkweed.bench.alerting.table import head, lines
from milkweed.bench.alerting.verdict import Verdict
from milkweed.server import container
from milkweed.server.settings import Settings

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULE_FILES = sorted((SHIPPED / "rules").glob("*.yml"))
ALERTS = [
    rule
    for path in RULE_FILES
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
KEYS = {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


def test_every_alert_has_a_fault_or_a_reason() -> None:
    made = {key for fault in FAULTS.values() for key in (*fault.fires, *fault.inhibited)}
    named = {*made, *NOT_MADE, *NOISE, *(key for fault in FAULTS.values() for key in fault.may_fire)}
    assert named <= KEYS, "no such alert"
    assert made | set(NOT_MADE) == KEYS
    assert not made & set(NOT_MADE)
    assert all(NOT_MADE.values())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_complete(name: str) -> None:
    fault = FAULTS[name]
    assert fault.name == name
    assert fault.fires
    assert fault.what
    assert fault.undone
    assert not set(fault.may_fire) & {*fault.inhibited}
    Settings(**fault.settings)


class Model:
    """Stands for the server's forward."""

    def run(self, pixels: str) -> str:
        return f"classes of {pixels}"


class Graph:
    """Stands for DALI's."""

    def run(self, bodies: str, regions: str) -> str:
        self._defined()
        return f"pixels of {bodies}"

    def _defined(self) -> None:
        """Well."""


@pytest.fixture
def levers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Levers:
    """Of a forward and a decoder in this process."""
    monkeypatch.setattr(obedience, "Lanes", type("Fresh", (Model,), {"run": Model.run}))
    monkeypatch.setattr(obedience, "DaliGraph", type("Fresh", (Graph,), {"run": Graph.run, "_defined": Graph._defined}))
    monkeypatch.setattr(container, "collect_container_memory", container.collect_container_memory)
    made, cgroup = Levers(tmp_path / "levers"), Cgroup(tmp_path / "cgroup")
    obedience.obey(made.folder, cgroup.folder)
    return made


def test_a_forward_obeys_its_levers(levers: Levers, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    model: Any = obedience.Lanes.__new__(obedience.Lanes)
    assert model.run("pixels") == "classes of pixels"
    assert slept == []
    levers.slow(0.25)
    assert model.run("pixels") == "classes of pixels"
    assert slept == [0.25]
    levers.fail()
    with pytest.raises(RuntimeError, match="told to fail"):
        model.run("pixels")
    levers.let_go()
    levers._pull("end")
    with pytest.raises(SystemExit):
        model.run("pixels")
    assert model.run("pixels") == "classes of pixels"  # once
    levers.hold()
    monkeypatch.setattr("time.sleep", lambda seconds: levers.let_go())
    assert model.run("pixels") == "classes of pixels"
    monkeypatch.setattr(obedience, "_HOARD", [])
    levers.grow(1000)
    model.run("pixels")
    model.run("pixels")
    assert [len(chunk) for chunk in obedience._HOARD] == [1000, 1000]


def test_a_decoder_obeys_its_lever(levers: Levers) -> None:
    graph: Any = obedience.DaliGraph.__new__(obedience.DaliGraph)
    assert graph.run("bodies", "regions") == "pixels of bodies"
    levers.lose_decoder()
    with pytest.raises(RuntimeError, match="told to be lost"):
        graph.run("bodies", "regions")
    levers.let_go()
    assert graph.run("bodies", "regions") == "pixels of bodies"


def test_a_server_reads_the_limit_of_its_stand_in(levers: Levers) -> None:
    cgroup = Cgroup(levers.folder.parent / "other")
    obedience.obey(levers.folder, cgroup.folder)
    assert list(container.collect_container_memory()) == []
    cgroup.limit(os.getpid(), 0.5)
    used, limit = (metric.samples[0].value for metric in container.collect_container_memory())
    assert used > 10_000_000
    assert limit == 2 * used


def test_a_course_notes_firsts_and_lasting_ends() -> None:
    course = Course()
    course.see("pending", None, 1.0)
    course.see("firing", "active", 2.0)
    course.hear("firing", 3.0)
    course.see("firing", "active", 4.0)
    course.see(None, "active", 5.0)
    course.see(None, None, 6.0)
    course.hear("resolved", 7.0)
    once = Course(pending=1.0, firing=2.0, received=2.0, told=3.0, resolved=5.0, dropped=6.0, told_end=7.0)
    assert course == once
    course.see("firing", "suppressed", 8.0)  # it was no end
    assert course == replace(once, inhibited=True, resolved=None, dropped=None)
    course.hear("firing", 9.0)
    assert (course.told, course.told_end) == (3.0, None)


def test_an_end_of_what_never_began_is_none() -> None:
    course = Course()
    course.hear("resolved", 1.0)
    course.see(None, None, 2.0)
    course.see("pending", None, 3.0)
    course.see(None, None, 4.0)
    assert course == Course(pending=3.0)


def test_an_observer_hears_and_looks() -> None:
    observer, key = Observer(), page("EngineDown")
    prometheus: Any = SimpleNamespace(alerts=lambda: {key: "firing"})
    alertmanager: Any = SimpleNamespace(alerts=lambda: {key: "active"})
    with LocalServer(observer.hear) as receiver, observer.following(prometheus, alertmanager):
        labels = {"alertname": key[0], "severity": key[1]}
        body = json.dumps({"alerts": [{"status": "firing", "labels": labels}]}).encode()
        with urllib.request.urlopen(f"http://{receiver.address}/page", body, timeout=10) as answer:
            assert answer.status == 200
        assert observer.wait(lambda courses: key in courses and None not in _begun(courses[key]), 10)
        assert not observer.wait(lambda courses: courses[key].resolved is not None, 0.5)
        prometheus.alerts = dict
        assert observer.wait(lambda courses: courses[key].resolved is not None, 10)


def _begun(course: Course) -> tuple[float | None, ...]:
    return course.pending, course.firing, course.received, course.told


def test_an_observer_says_when_it_can_see_no_more() -> None:
    def gone() -> dict[Any, str]:
        raise ConnectionRefusedError("nobody there")

    observer = Observer()
    alertmanager: Any = SimpleNamespace(alerts=dict)
    prometheus: Any = SimpleNamespace(alerts=gone)
    with observer.following(prometheus, alertmanager), pytest.raises(RuntimeError, match="nobody there"):
        observer.wait(lambda courses: False, 10)


def verdict(**changed: Any) -> Verdict:
    """Of a fault that did all it should."""
    whole = Course(pending=11.0, firing=12.0, received=12.5, told=13.0, resolved=22.0, dropped=23.0, told_end=24.0)
    usual = Verdict(
        FAULTS["server-killed"],
        courses={ticket("TargetDown"): whole},
        made=10.0,
        undone=20.0,
        undo_seconds=1.0,
        for_seconds={ticket("TargetDown"): 120.0},
        factor=60.0,
        requests={"200": 100, "no_connection": 2},
    )
    return replace(usual, **changed)


def test_a_verdict_counts_seconds_from_the_fault_and_from_its_undoing() -> None:
    (row,) = verdict().rows()
    assert (row["alert"], row["severity"]) == ("MilkweedTargetDown", "ticket")
    assert (row["for_seconds"], row["for_seconds_here"]) == (120.0, 2.0)
    assert row["seconds_until"] == {"pending": 1.0, "firing": 2.0, "received": 2.5, "told": 3.0}
    assert row["seconds_after_undo_began_until"] == {"resolved": 2.0, "dropped": 3.0, "told": 4.0}
    assert verdict().complaints() == []
    told = [*lines(verdict().as_json())]
    assert told[0].split() == ["server-killed", "TargetDown", "120", "2", "1", "2", "3", "2", "4"]
    assert head().split() == ["fault", "alert", "for", "here", "pending", "firing", "told", "resolved", "told"]


def test_a_verdict_complains() -> None:
    key = ticket("TargetDown")
    whole = verdict().courses[key]
    stray = {key: whole, page("EngineDown"): Course(firing=1.0), ticket("QueueOld"): Course(pending=1.0)}
    late = {key: whole, ticket("EventLoopLag"): Course(firing=1.0)}
    for changed, words in (
        ({"courses": {}}, "was not pending, fired"),
        ({"courses": {key: replace(whole, told=None)}}, "received and told"),
        ({"courses": {key: replace(whole, told_end=None)}}, "did not end"),
        ({"courses": stray}, "MilkweedEngineDown (page) fired"),
        ({"requests": {"200": 9, "503": 1}}, "requests were to be answered"),
        ({"requests": {}}, "requests were to be answered"),
    ):
        found = verdict(**changed).complaints()
        assert any(words in each for each in found), (changed, found)
        assert not any("QueueOld" in each for each in found)
    assert verdict(courses=late).complaints() == []


def test_what_is_inhibited_must_be_kept_back() -> None:
    absent, down = page("Absent"), ticket("TargetDown")
    whole = verdict().courses[down]
    held = replace(whole, told=None, told_end=None, inhibited=True)
    fields: dict[str, Any] = {
        "fault": FAULTS["all-servers-killed"],
        "for_seconds": {absent: 120.0, down: 120.0},
        "requests": {"refused": 9},
    }
    assert verdict(**fields, courses={absent: whole, down: held}).complaints() == []
    (complaint,) = verdict(**fields, courses={absent: whole, down: whole}).complaints()
    assert "kept back" in complaint


def test_waiting_ends_with_what_was_waited_for() -> None:
    with pytest.raises(RuntimeError, match=r"not within 0.1 s: the sun"):
        wait_until(lambda: False, 0.1, "the sun")
    wait_until(lambda: True, 0.1, "the rain")


def test_programs_are_those_of_the_folder_or_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"no prometheus in {tmp_path}"):
        find_programs()
    for name in ("prometheus", "alertmanager"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_programs().alertmanager == tmp_path / "alertmanager"
    (tmp_path / "prometheus-alertmanager").symlink_to(tmp_path / "alertmanager")
    assert find_programs(tmp_path).alertmanager == tmp_path / "prometheus-alertmanager"


def test_the_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        alerts.main(["--faults", "server-killed,flood"])
    assert "no fault 'flood'; there are: forward-hangs, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        alerts.main(["--factor", "0"])
    assert alerts.main(["--prometheus-bin", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"milkweed: error: no prometheus in {tmp_path}")


def test_the_command_writes_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "results" / "alerts.json"
    monkeypatch.setattr(alerts, "find_programs", lambda folder: None)
    monkeypatch.setattr(alerts, "_versions", lambda programs, folder: {"prometheus": "2", "alertmanager": "0"})
    for tried, code in ((verdict(), 0), (verdict(courses={}), 1)):
        monkeypatch.setattr(alerts, "trial", lambda *_, tried=tried: tried)
        assert alerts.main(["--faults", "server-killed", "--out", str(out)]) == code
        document = json.loads(out.read_text(encoding="utf-8"))
        assert (document["factor"], document["scrape_seconds"], document["prometheus"]) == (60, 1, "2")
        assert document["faults"] == [json.loads(json.dumps(tried.as_json()))]
        assert document["not_made"]["MilkweedScrapeSlow/ticket"] == NOT_MADE[ticket("ScrapeSlow")]
