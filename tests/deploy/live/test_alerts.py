"""Faults are made from outside in real servers beside a real Prometheus and Alertmanager, which tell the right alerts.

The durations of the rules are divided by FACTOR. The cases in deploy/prometheus/tests show that each rule fires as it
should. The rows of the table in docs/observability.md are printed at the end, and `pytest -s` shows them.
"""

import hashlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from milkweed.models import load_bundle, save_bundle

from ..test_prometheus import RULES
from .monitoring import EVERY_SECONDS, Key, Message, Programs, Prometheus, monitoring, newest, wait_until
from .servers import Replica, slow_uploads, traffic

pytestmark = pytest.mark.slow

HEAD = "| fault | alert | for | fires after | told after | ends after | end told after |\n|---|---|---|---|---|---|---|"

FACTOR = 60.0
SETTLED_SECONDS, QUIET_SECONDS = 120.0, 8.0
TOLD_SECONDS, ENDED_SECONDS = 90.0, 140.0
HEALTHY_SECONDS = 30.0  # This is half an hour of the rules.

# A server with these settings can take little, so it is overloaded while it leaves cores to those that watch it.
SMALL = {"max_queue_images": 32, "max_images_per_request": 32, "lanes": 1, "threads_per_image": 1, "decode_threads": 1}

KEY = "mw_of_the_tests"
KEYS = f'[[key]]\nname = "admin"\nsha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"\n'
KEY_HEADERS = {"X-API-Key": KEY}


def ticket(name: str) -> Key:
    return f"Milkweed{name}", "ticket"


ABSENT, BURN, SLOW = ((f"Milkweed{name}", "page") for name in ("Absent", "ErrorBudgetBurn", "LatencyBudgetBurn"))
TARGET_DOWN = ticket("TargetDown")
NOISE = {ticket("EventLoopLag")}  # One late tick in some seconds fires it, which says nothing of a busy machine.
# A few failed or slow requests are much of the few that are sent.
BUDGETS = {(f"Milkweed{what}BudgetBurn", severity) for what in ("Error", "Latency") for severity in ("page", "ticket")}


@dataclass(frozen=True)
class Scene:
    """Some servers share one repository and one file of API keys, and a Prometheus scrapes them."""

    folder: Path
    bundle: Path
    replicas: list[Replica]
    prometheus: Prometheus
    told: list[Message]

    def traffic(self, **plan: Any) -> AbstractContextManager[Callable[[], Counter[str]]]:
        """Send requests with the key to all servers."""
        return traffic(self.replicas, headers=tuple(KEY_HEADERS.items()), **plan)

    def bring(self, version: str, *, broken: bool = False, name: str = "bench", opposite: bool = False) -> None:
        """Bring a version of a model into the repository, whole at once. `opposite`: its best class is the worst."""
        coming = self.folder / "coming"
        shutil.copytree(self.bundle, coming)
        if broken:
            (coming / "model.safetensors").write_bytes(b"no weights")
        if opposite:
            model, config = load_bundle(self.bundle)
            cast(Any, model).head.weight.data.neg_()
            save_bundle(coming, model, config, overwrite=True)
        coming.rename(self.folder / "models" / name / version)

    def admin(self, what: str) -> None:
        """Ask the admin API of the last server to load or unload the model."""
        url = f"{self.replicas[-1].admin_url}/v1/models/bench/{what}"
        httpx.post(url, headers=KEY_HEADERS, timeout=30, trust_env=False).raise_for_status()

    def all_scraped(self) -> bool:
        return self.prometheus.targets() == ["up"] * len(self.replicas)


def killed(scene: Scene) -> Iterator[None]:
    scene.replicas[-1].kill()
    yield
    scene.replicas[-1].start()


def drained(scene: Scene) -> Iterator[None]:
    scene.replicas[-1].stop()
    yield
    scene.replicas[-1].start()


def killed_twice(scene: Scene) -> Iterator[None]:
    for _ in range(2):
        scene.replicas[-1].kill()
        scene.replicas[-1].start()
        wait_until(scene.all_scraped, TOLD_SECONDS, "it is scraped again", lasting_seconds=2.0 * EVERY_SECONDS)
    yield


def overloaded(scene: Scene) -> Iterator[None]:
    with scene.traffic(images=32, rate=60.0, arrivals="poisson", connections=16):
        yield


def impatient(scene: Scene) -> Iterator[None]:
    with scene.traffic(images=16, size=1500, rate=4.0, timeout_seconds=0.04):
        yield


def slow(scene: Scene) -> Iterator[None]:
    with slow_uploads(scene.replicas[-1], KEY_HEADERS):
        yield


def broken_version(scene: Scene) -> Iterator[None]:
    scene.bring("2", broken=True)
    yield
    scene.bring("3")


def unloaded(scene: Scene) -> Iterator[None]:
    scene.admin("unload")
    yield
    scene.admin("load")


def broken_keys(scene: Scene) -> Iterator[None]:
    (scene.folder / "keys.toml").write_text("no TOML", encoding="utf-8")
    yield
    (scene.folder / "keys.toml").write_text(KEYS, encoding="utf-8")


def disagreeing(scene: Scene) -> Iterator[None]:
    with scene.traffic(images=16, rate=15.0):  # 2,000 images must have been compared
        scene.bring("2", name="other", opposite=True)
        yield
        scene.bring("3", name="other")


@dataclass(frozen=True)
class Fault:
    """A fault is made, and undone once all that it is to cause was told.

    Args:
        made: a generator that makes the fault until it yields, and undoes it when it goes on.
        told: the alerts whose beginning and end must be told.
        may: the alerts that may be told besides; no other may.
        kept: the alerts that fire and that nobody is told of, since one of `told` explains them.
        unharmed: whether every request must be answered with 200 all the same.
        replicas: the number of servers.
        shadowed: whether the model has a shadow.
    """

    made: Callable[[Scene], Iterator[None]]
    told: set[Key]
    may: set[Key] = field(default_factory=set)
    kept: set[Key] = field(default_factory=set)
    unharmed: bool = False
    replicas: int = 1
    shadowed: bool = False

    def alerts(self) -> list[Key]:
        return [*sorted(self.told), *sorted(self.kept)]


FAULTS = {
    "one of two servers is killed": Fault(killed, {TARGET_DOWN}, BUDGETS, replicas=2),
    "one of two servers drains": Fault(drained, {TARGET_DOWN}, unharmed=True, replicas=2),
    "the only server is killed": Fault(killed, {ABSENT}, BUDGETS, kept={TARGET_DOWN}),
    "the server is killed and started again, twice": Fault(
        killed_twice, {ticket("ProcessRestarts")}, {ABSENT, TARGET_DOWN, *BUDGETS}
    ),
    "more requests than it can take": Fault(overloaded, {ticket("Refusals"), BURN}, BUDGETS),
    "clients leave before they are answered": Fault(impatient, {ticket("ClientsGiveUp")}, BUDGETS),
    "bodies come slowly": Fault(slow, {SLOW}, BUDGETS, unharmed=True),
    "a version cannot be loaded": Fault(broken_version, {ticket("ModelReloadFailing")}, unharmed=True),
    "the only model is unloaded": Fault(unloaded, {ticket("ModelNotReady")}, BUDGETS),
    "the file of API keys is no TOML": Fault(broken_keys, {ticket("FileReloadFailing")}, unharmed=True),
    "a shadow answers otherwise": Fault(disagreeing, {ticket("ShadowDisagrees")}, unharmed=True, shadowed=True),
}


@contextmanager
def staged(
    programs: Programs, bundle: Path, folder: Path, count: int = 1, *, shadowed: bool = False
) -> Iterator[Scene]:
    """Start so many servers of a repository that has one version, and what watches them."""
    shutil.copytree(bundle, folder / "models" / "bench" / "1")
    (folder / "keys.toml").write_text(KEYS, encoding="utf-8")
    own = {"repository": str(folder / "models"), "repository_seconds": 0.5, "api_keys": str(folder / "keys.toml")}
    if shadowed:
        shutil.copytree(bundle, folder / "models" / "other" / "1")
        own["shadow"] = "other=bench:1"
    replicas = [Replica(None, {**own, **SMALL}) for _ in range(count)]
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
            scene.all_scraped()
            and bool(prometheus.query("job:milkweed_requests_answered:rate5m > 0"))
            and prometheus.firing() <= NOISE
            and {alert for alert, status in newest(told).items() if status == "firing"} <= NOISE
        )

    wait_until(quiet, SETTLED_SECONDS, "all is scraped and nothing fires", lasting_seconds=QUIET_SECONDS)
    told.clear()


def beginning(name: str, alert: Key) -> str:
    """Return the first three cells of a row, which need no measurement."""
    waits = {(rule["alert"], rule["labels"]["severity"]): rule.get("for", "0s") for rule in RULES if "alert" in rule}
    return f"| {name} | {alert[0].removeprefix('Milkweed')}, {alert[1]} | {waits[alert]} |"


def row(name: str, alert: Key, scene: Scene, made: float, undone: float) -> str:
    """Return one row; a cell stays empty where nothing fired or nothing was told."""
    fired = [at for at in scene.prometheus.fired().get(alert, []) if at >= made]
    told = [message.at for message in scene.told if (message.alert, message.status) == (alert, "firing")]
    ended = [message.at for message in scene.told if (message.alert, message.status) == (alert, "resolved")]
    seconds = (
        min(fired, default=math.nan) - made,
        min(told, default=math.nan) - made,
        max(fired, default=math.nan) + EVERY_SECONDS - undone,  # It fires no more at the evaluation after this one.
        max(ended, default=math.nan) - undone,
    )
    return " ".join([beginning(name, alert), *("|" if math.isnan(each) else f"{each:.1f} |" for each in seconds)])


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Collect the rows of all faults, and print them at the end."""
    rows: list[str] = []
    yield rows
    print("", HEAD, *rows, sep="\n")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_so_is_its_end(
    name: str, programs: Programs, bundle: Path, tmp_path: Path, table: list[str]
) -> None:
    fault = FAULTS[name]
    with staged(programs, bundle, tmp_path, fault.replicas, shadowed=fault.shadowed) as scene, scene.traffic() as end:
        settle(scene)
        told, firing = scene.told, scene.prometheus.firing
        made, undone = time.time(), math.nan
        try:
            with contextmanager(fault.made)(scene):
                wait_until(lambda: newest(told).keys() >= fault.told, TOLD_SECONDS, f"{fault.told} are told")
                wait_until(lambda: firing() >= fault.kept, TOLD_SECONDS, f"{fault.kept} fire")
                undone = time.time()
            over = dict.fromkeys(fault.told, "resolved")
            wait_until(lambda: newest(told).items() >= over.items(), ENDED_SECONDS, f"the end of {fault.told} is told")
            wait_until(lambda: not firing() & fault.kept, ENDED_SECONDS, f"{fault.kept} end")
        finally:
            table.extend(row(name, alert, scene, made, undone) for alert in fault.alerts())
        assert fault.told <= set(newest(told)) <= fault.told | fault.may | NOISE
        outcomes = end()
    if fault.unharmed:
        assert set(outcomes) <= {"200", "no_connection"}  # The second means that too many were open to send another.


def test_malformed_images_are_nothing_to_be_told_of(programs: Programs, bundle: Path, tmp_path: Path) -> None:
    with staged(programs, bundle, tmp_path) as scene, scene.traffic(malformed_share=0.5) as end:
        settle(scene)
        said = scene.told
        wait_until(lambda: set(newest(said)) <= NOISE, TOLD_SECONDS, "nothing is told", lasting_seconds=HEALTHY_SECONDS)
        outcomes = end()
    assert outcomes["200"] > 50
    assert outcomes["415"] + outcomes["422"] > 50
