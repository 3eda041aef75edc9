"""Faults of the engine: it hangs, fails, is lost, or is killed with its process."""

from functools import partial
from urllib.error import HTTPError
from urllib.request import urlopen

from ....server.engine import MOST_RESTARTS
from ..answers import ASK_SECONDS
from ..patience import wait_until
from .fault import BUDGETS, GONE, Fault, page, ticket
from .scene import Scene
from .traffic import traffic

ENGINES = 2
FEW, MANY = 0.02, 50.0
BACK_SECONDS = 60.0


def lose_an_engine(scene: Scene) -> None:
    """End the engines' threads until one of them is not begun again."""
    for ends in range(1, ENGINES * MOST_RESTARTS + 2):
        scene.levers.end_thread()
        wait_until(partial(_have_ended, scene, ends), BACK_SECONDS, "a thread that was ended is begun again, or not")
        if _lost(scene):
            return
    raise RuntimeError(f"no engine was lost though {ends} threads were ended")


def _have_ended(scene: Scene, ends: int) -> bool:
    return sum(scene.first.metric("milkweed_engine_restarts_total")) + _lost(scene) >= ends


def _lost(scene: Scene) -> int:
    return scene.first.metric("milkweed_engine_up").count(0.0)


def restart(scene: Scene) -> None:
    """End the server and start it again."""
    scene.first.stop()
    scene.first.start()


def kill_again_and_again(scene: Scene, times: int = 2) -> None:
    """SIGKILL the server and start it again, and once more when its successor serves and was scraped."""
    for starts in range(1, times + 1):
        scene.first.kill()
        scene.first.start()
        wait_until(partial(_was_scraped, scene, starts), BACK_SECONDS, "its successor is scraped")
        wait_until(partial(_is_ready, scene), BACK_SECONDS, "its successor is ready")


def _was_scraped(scene: Scene, starts: int) -> bool:
    return bool(scene.prometheus.query(f"changes(process_start_time_seconds[10m]) >= {starts}"))


def _is_ready(scene: Scene) -> bool:
    try:
        with urlopen(f"{scene.first.url}/readyz", timeout=ASK_SECONDS):
            return True
    except HTTPError as error:
        error.close()
    except OSError:
        pass  # nobody listens for a moment
    return False


def fail_a_few(scene: Scene) -> None:
    """More than the objective allows, less than wakes a person."""
    scene.levers.fail(FEW)
    scene.more.enter_context(traffic(scene.plan(rate=MANY)))


def let_go(scene: Scene) -> None:
    """Batches are as ever."""
    scene.levers.let_go()


def let_go_and_restart(scene: Scene) -> None:
    """Both, in this order: a start builds a graph."""
    let_go(scene)
    restart(scene)


ENGINE_FAULTS = (
    Fault(
        name="forward-hangs",
        what="a forward hangs; --engine-stall-seconds 2",
        undone="it goes on",
        fires=(page("EngineDown"),),
        make=lambda scene: scene.levers.hold(),
        undo=let_go,
        may_fire=(page("EngineHeartbeatStale"), *BUDGETS),
        settings={"engine_stall_seconds": 2.0},
    ),
    Fault(
        name="batch-takes-too-long",
        what="a batch takes far too long; --engine-stall-seconds 60",
        undone="it ends",
        fires=(page("EngineHeartbeatStale"), ticket("QueueOld")),
        make=lambda scene: scene.levers.hold(),
        undo=let_go,
        may_fire=BUDGETS,
        settings={"engine_stall_seconds": 60.0},
    ),
    Fault(
        name="forwards-fail",
        what="every forward fails",
        undone="they work again",
        fires=(page("EngineDown"), page("ErrorBudgetBurn"), ticket("ImagesFail")),
        make=lambda scene: scene.levers.fail(),
        undo=let_go,
        may_fire=BUDGETS,
    ),
    Fault(
        name="some-forwards-fail",
        what=f"{FEW:.0%} of the forwards fail, of {MANY:g} a second",
        undone="they work again",
        fires=(ticket("ErrorBudgetBurn"),),
        make=fail_a_few,
        undo=let_go,
        may_fire=(ticket("ImagesFail"), *BUDGETS, *GONE),
        quicker=10.0,
    ),
    Fault(
        name="engine-lost",
        what="one of two engines: its thread is ended four times",
        undone="the server is restarted",
        fires=(page("EngineDown"), ticket("EngineRestarts")),
        make=lose_an_engine,
        undo=restart,
        may_fire=(ticket("ImagesFail"), *BUDGETS, *GONE),
        tells_end=False,
        settings={"device": ",".join(["cpu"] * ENGINES), "max_batch_size": 1},
    ),
    Fault(
        name="server-killed-twice",
        what="the server is killed and started again, twice",
        undone="it goes on",
        fires=(ticket("ProcessRestarts"),),
        make=kill_again_and_again,
        undo=let_go,
        may_fire=(ticket("ModelNotReady"), *BUDGETS, *GONE),
    ),
    Fault(
        name="decoder-lost",
        what="with --loader dali, its graph is lost and cannot be built again",
        undone="the server is restarted",
        fires=(ticket("DecoderLost"), ticket("DecoderFallback")),
        make=lambda scene: scene.levers.lose_decoder(),
        undo=let_go_and_restart,
        may_fire=(*BUDGETS, *GONE),
        tells_end=False,
        images="JPEG",
        settings={"loader": "dali"},
    ),
)
