"""Faults that are made from outside in real servers beside a real Prometheus and Alertmanager: who is told of what.

Durations of the rules are divided by FACTOR. That each rule fires as it should is shown by deploy/prometheus/tests.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .monitoring import Key, Programs, Prometheus, monitoring, shortened, wait_until
from .servers import Replica, traffic

FACTOR = 60.0
SETTLED_SECONDS, QUIET_SECONDS = 120.0, 8.0
TOLD_SECONDS, ENDED_SECONDS = 90.0, 140.0
HEALTHY_SECONDS = 30.0  # half an hour of the rules

# A server that takes little, so that it is overloaded while it leaves cores to those that watch it.
SMALL = {"max_queue_images": 32, "max_images_per_request": 32, "lanes": 1, "threads_per_lane": 1, "decode_threads": 1}

ABSENT, BURN = ("MilkweedAbsent", "page"), ("MilkweedErrorBudgetBurn", "page")
TARGET_DOWN, REFUSALS = ("MilkweedTargetDown", "ticket"), ("MilkweedRefusals", "ticket")
RELOAD_FAILING = ("MilkweedModelReloadFailing", "ticket")
NOISE = {("MilkweedEventLoopLag", "ticket")}  # one late tick in some seconds: it says nothing of a busy machine
# A few failed or slow requests are much of the few that are sent.
BUDGETS = {(f"Milkweed{what}BudgetBurn", severity) for what in ("Error", "Latency") for severity in ("page", "ticket")}


@dataclass(frozen=True)
class Scene:
    """Servers of one repository, and the newest status of each alert that was told of them."""

    folder: Path
    bundle: Path
    replicas: list[Replica]
    prometheus: Prometheus
    told: dict[Key, str]

    def bring(self, version: str, *, broken: bool = False) -> None:
        """A new version of the model, whole at once."""
        coming = self.folder / "coming"
        shutil.copytree(self.bundle, coming)
        if broken:
            (coming / "model.safetensors").write_bytes(b"no weights")
        coming.rename(self.folder / "models" / "bench" / version)


def killed(scene: Scene) -> Iterator[None]:
    scene.replicas[-1].kill()
    yield
    scene.replicas[-1].start()


def drained(scene: Scene) -> Iterator[None]:
    scene.replicas[-1].stop()
    yield
    scene.replicas[-1].start()


def overloaded(scene: Scene) -> Iterator[None]:
    with traffic(scene.replicas, images=32, rate=60.0, arrivals="poisson", connections=16):
        yield


def broken_version(scene: Scene) -> Iterator[None]:
    scene.bring("2", broken=True)
    yield
    scene.bring("3")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        made: begins when it is made, goes on when it is to be undone.
        told: alerts whose beginning and end must be told; `may`: those that may be, and no other.
        kept: alerts that fire and that nobody is told of, since one of `told` explains them.
        unharmed: every request must be answered with 200 all the same.
    """

    made: Callable[[Scene], Iterator[None]]
    told: set[Key]
    may: set[Key] = field(default_factory=set)
    kept: set[Key] = field(default_factory=set)
    unharmed: bool = False
    replicas: int = 1


FAULTS = {
    "one of two servers is killed": Fault(killed, {TARGET_DOWN}, BUDGETS, replicas=2),
    "one of two servers drains": Fault(drained, {TARGET_DOWN}, unharmed=True, replicas=2),
    "the only server is killed": Fault(killed, {ABSENT}, BUDGETS, kept={TARGET_DOWN}),
    "more requests than it can take": Fault(overloaded, {REFUSALS, BURN}, BUDGETS),
    "a version cannot be loaded": Fault(broken_version, {RELOAD_FAILING}, unharmed=True),
}


@contextmanager
def staged(programs: Programs, bundle: Path, folder: Path, count: int = 1) -> Iterator[Scene]:
    """So many servers of a repository of one version."""
    shutil.copytree(bundle, folder / "models" / "bench" / "1")
    settings = {"repository": str(folder / "models"), "repository_seconds": 0.5, **SMALL}
    replicas = [Replica(None, settings) for _ in range(count)]
    with ExitStack() as stack:
        for replica in replicas:
            stack.callback(replica.stop)
            replica.start()
        addresses = [replica.metrics_address for replica in replicas]
        running = stack.enter_context(monitoring(programs, folder / "monitoring", addresses, FACTOR))
        yield Scene(folder, bundle, replicas, *running)


def settle(scene: Scene) -> None:
    """Wait until all servers are scraped, requests are seen and nothing fires; forget what was told before."""
    prometheus, told = scene.prometheus, scene.told

    def quiet() -> bool:
        return (
            prometheus.targets() == ["up"] * len(scene.replicas)
            and bool(prometheus.query("job:milkweed_requests_answered:rate5m > 0"))
            and prometheus.firing() <= NOISE
            and {alert for alert, status in list(told.items()) if status == "firing"} <= NOISE
        )

    wait_until(quiet, SETTLED_SECONDS, "all is scraped and nothing fires", lasting_seconds=QUIET_SECONDS)
    told.clear()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told_and_so_is_its_end(fault: Fault, programs: Programs, bundle: Path, tmp_path: Path) -> None:
    with staged(programs, bundle, tmp_path, fault.replicas) as scene, traffic(scene.replicas) as end:
        settle(scene)
        told, firing = scene.told, scene.prometheus.firing
        with contextmanager(fault.made)(scene):
            wait_until(lambda: told.keys() >= fault.told, TOLD_SECONDS, f"{fault.told} are told")
            wait_until(lambda: firing() >= fault.kept, TOLD_SECONDS, f"{fault.kept} fire")
        over = dict.fromkeys(fault.told, "resolved")
        wait_until(lambda: told.items() >= over.items(), ENDED_SECONDS, f"the end of {fault.told} is told")
        assert fault.told <= set(told) <= fault.told | fault.may | NOISE
        outcomes = end()
    if fault.unharmed:
        assert set(outcomes) <= {"200", "no_connection"}  # the second: too many were open to send another


def test_malformed_images_are_nothing_to_be_told_of(programs: Programs, bundle: Path, tmp_path: Path) -> None:
    with staged(programs, bundle, tmp_path) as scene, traffic(scene.replicas, malformed_share=0.5) as end:
        settle(scene)
        wait_until(lambda: set(scene.told) <= NOISE, TOLD_SECONDS, "nothing is told", lasting_seconds=HEALTHY_SECONDS)
        outcomes = end()
    assert outcomes["200"] > 50
    assert outcomes["415"] + outcomes["422"] > 50


def test_durations_of_rules_and_routes_are_divided_and_nothing_else() -> None:
    text = """
    expr: rate(x{le="5m"}[5m]) / y offset 1h > 10 and max_over_time(z[1h:1m])
    for: 2m
    annotations: {description: "in 15m, for: {{ $value }} [s]"}
      group_wait: 30s
"""
    expected = """
    expr: rate(x{le="5m"}[5000ms]) / y offset 60000ms > 10 and max_over_time(z[60000ms:3000ms])
    for: 2000ms
    annotations: {description: "in 15m, for: {{ $value }} [s]"}
      group_wait: 500ms
"""
    assert shortened(text, 60) == expected
    assert shortened(text, 1) == text
