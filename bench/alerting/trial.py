"""Trial: one fault made and undone beside a Prometheus and an Alertmanager of its own."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .answers import Key
from .faults.catalogue import NOISE
from .faults.fault import Fault
from .faults.scene import Scene
from .faults.traffic import traffic
from .local_server import LocalServer
from .monitoring import Monitoring, monitoring
from .observer import Course, Courses, Observer
from .patience import wait_until
from .programs import Programs
from .verdict import Verdict, ended, heard, kept

FIRE_MINUTES, END_MINUTES = 25.0, 75.0
"""Of the rules' own time: the longest that any alert here waits before it fires, and looks back before it ends."""

SPARE_SECONDS = 60.0
"""For what does not get shorter with the rules: starts, scrapes, a busy machine."""

SETTLE_SECONDS, QUIET_SECONDS = 120.0, 8.0
"""Until all is scraped and nothing fires, and how long that lasts before anything is done."""

FACTOR = 60.0
"""A minute of the rules becomes a second."""


@dataclass(frozen=True)
class _Stage:
    """What runs during a trial; `end` ends the requests and counts them."""

    scene: Scene
    running: Monitoring
    observer: Observer
    end: Callable[[], Counter[str]]


def trial(fault: Fault, programs: Programs, bundle: Path, factor: float = FACTOR) -> Verdict:
    """Make a fault, wait until it was told; undo it, wait until all is over.

    Args:
        bundle: that the servers serve; a tiny one.
        factor: to divide the rules' durations by.

    Raises:
        RuntimeError: a program does not start, or the fault cannot be made.
    """
    factor *= fault.quicker
    to_fire, to_end = _bound(FIRE_MINUTES, factor), _bound(END_MINUTES, factor)
    with _staged(fault, programs, bundle, factor, SETTLE_SECONDS + 2 * (to_fire + to_end)) as stage:
        settle(stage.running)
        for_seconds = shipped_for_seconds(stage.running)
        fault.prepare(stage.scene)
        made = stage.observer.begin()
        fault.make(stage.scene)
        stage.observer.wait(partial(_all_heard, fault), to_fire)
        undone = time.monotonic()
        fault.undo(stage.scene)
        undo_seconds = time.monotonic() - undone
        stage.observer.wait(partial(_all_ended, fault), to_end)
        courses = stage.observer.courses
        requests = stage.end()
    return Verdict(fault, courses, made, undone, undo_seconds, for_seconds, factor, requests)


def settle(running: Monitoring) -> None:
    """Wait until every target is scraped, requests are seen, nothing fires, and whoever is told of alerts is known.

    Raises:
        RuntimeError: that did not come about.
    """
    wait_until(
        partial(_is_quiet, running),
        SETTLE_SECONDS,
        "all targets are scraped and nothing fires",
        lasting_seconds=QUIET_SECONDS,
    )


def shipped_for_seconds(running: Monitoring) -> dict[Key, float]:
    """How long each alert is pending as it is shipped."""
    return {rule.key: round(rule.for_seconds * running.factor, 1) for rule in running.prometheus.rules() if rule.alert}


@contextmanager
def _staged(fault: Fault, programs: Programs, bundle: Path, factor: float, most_seconds: float) -> Iterator[_Stage]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="milkweed-alerts-")))
        observer = Observer()
        receiver = stack.enter_context(LocalServer(observer.hear))
        scene = stack.enter_context(Scene(folder / "scene", bundle, most_seconds))
        scene.images = fault.images
        dcgm = stack.enter_context(LocalServer(scene.dcgm.exposition))
        scene.open({**fault.settings, **fault.needs(scene)}, fault.replicas)
        (folder / "monitoring").mkdir()
        running = stack.enter_context(
            monitoring(
                programs,
                folder / "monitoring",
                pods=scene.pods,
                factor=factor,
                webhook=receiver.address,
                others={"dcgm": dcgm.address},
            )
        )
        # Prometheus takes seconds to find its targets: the servers start meanwhile.
        scene.start(running.prometheus)
        stack.enter_context(observer.following(running.prometheus, running.alertmanager))
        end = stack.enter_context(traffic(scene.plan()))
        yield _Stage(scene, running, observer, end)


def _is_quiet(running: Monitoring) -> bool:
    prometheus, targets = running.prometheus, running.prometheus.targets()
    return (
        list(targets.values()) == ["up"] * running.targets
        and prometheus.has_alertmanager()
        and bool(prometheus.query("job:milkweed_requests_answered:rate5m > 0"))
        and {key for key, state in prometheus.alerts().items() if state == "firing"} <= set(NOISE)
        and running.alertmanager.alerts().keys() <= set(NOISE)
    )


def _all_heard(fault: Fault, courses: Courses) -> bool:
    return all(heard(courses.get(key, Course())) for key in fault.fires) and all(
        kept(courses.get(key, Course())) for key in fault.inhibited
    )


def _all_ended(fault: Fault, courses: Courses) -> bool:
    return all(ended(courses.get(key, Course()), told=fault.tells_end) for key in fault.fires) and all(
        ended(courses.get(key, Course()), told=False) for key in fault.inhibited
    )


def _bound(minutes: float, factor: float) -> float:
    return minutes * 60 / factor + SPARE_SECONDS
