"""Faults of load: more than the server can do, answers that take long, clients that do not wait."""

from .fault import BUDGETS, Fault, page, ticket
from .scene import Scene
from .traffic import traffic

BATCH, BATCH_SECONDS = 4, 0.1
"""Forty images a second, whatever the machine does."""

OVERLOAD_RATE = 100.0
TIMEOUT_MS = 400

IMPATIENT_SECONDS = 0.1
SLOW_BATCH_SECONDS, TOO_SLOW_BATCH_SECONDS = 0.3, 1.5


def overload(scene: Scene) -> None:
    """Two and a half times what the model can do, by clients that say how long they will wait."""
    scene.levers.slow(BATCH_SECONDS)
    headers = (*scene.headers, ("X-Request-Timeout-Ms", str(TIMEOUT_MS)))
    wanted = scene.plan(rate=OVERLOAD_RATE, connections=64, timeout_seconds=5.0, headers=headers)
    scene.more.enter_context(traffic(wanted))


def give_up(scene: Scene) -> None:
    """Clients that leave long before an answer can be there."""
    scene.levers.slow(SLOW_BATCH_SECONDS)
    wanted = scene.plan(rate=20.0, connections=64, timeout_seconds=IMPATIENT_SECONDS)
    scene.more.enter_context(traffic(wanted))


def send_webp(scene: Scene) -> None:
    """As many of these as there are others, and more."""
    scene.more.enter_context(traffic(scene.plan(rate=20.0, images="WEBP")))


def end_load(scene: Scene) -> None:
    """The usual requests, and the model as quick as it is."""
    scene.more.close()
    scene.levers.let_go()


LOAD_FAULTS = (
    Fault(
        name="overload",
        what=f"{OVERLOAD_RATE:g} requests a second that wait {TIMEOUT_MS} ms, where 40 can be answered",
        undone="they end",
        fires=(ticket("Refusals"), page("ErrorBudgetBurn")),
        make=overload,
        undo=end_load,
        may_fire=BUDGETS,
        settings={"max_batch_size": BATCH},
    ),
    Fault(
        name="clients-give-up",
        what="two of three clients leave after 0.1 s, an answer takes 0.3 s and more",
        undone="they no longer come",
        fires=(ticket("ClientsGiveUp"),),
        make=give_up,
        undo=end_load,
        may_fire=BUDGETS,
    ),
    Fault(
        name="slow-answers",
        what="every batch takes 1.5 s",
        undone="it does not",
        fires=(page("LatencyBudgetBurn"),),
        make=lambda scene: scene.levers.slow(TOO_SLOW_BATCH_SECONDS),
        undo=end_load,
        may_fire=BUDGETS,
    ),
    Fault(
        name="no-jpegs",
        what="with --loader dali, clients send WebP, which DALI is not for",
        undone="they send JPEG again",
        fires=(ticket("DecoderFallback"),),
        make=send_webp,
        undo=end_load,
        may_fire=BUDGETS,
        images="JPEG",
        settings={"loader": "dali"},
    ),
)
