"""Faults of processes: a server killed, all of them, memory near its limit."""

from .cgroup import USUAL_SHARE
from .dcgm import XID
from .fault import BUDGETS, GONE, Fault, page, ticket
from .scene import Scene

LEAK_BYTES, LOCK_COUNT = 1_000_000, 5_000_000


def limit_memory(scene: Scene, share: float = USUAL_SHARE) -> None:
    """A limit of which the server uses this share."""
    assert scene.first.pid is not None, "it was not started"
    scene.cgroup.limit(scene.first.pid, share)


PROCESS_FAULTS = (
    Fault(
        name="server-killed",
        what="one of two servers is killed",
        undone="it is started again",
        fires=(ticket("TargetDown"),),
        make=lambda scene: scene.replicas[1].kill(),
        undo=lambda scene: scene.replicas[1].start(),
        unharmed=True,
        replicas=2,
    ),
    Fault(
        name="all-servers-killed",
        what="the only server is killed",
        undone="it is started again",
        fires=(page("Absent"),),
        inhibited=(ticket("TargetDown"),),
        make=lambda scene: scene.first.kill(),
        undo=lambda scene: scene.first.start(),
        may_fire=BUDGETS,
    ),
    Fault(
        name="memory-near-limit",
        what="the server uses 95 % of its memory limit, by what stands for the kernel",
        undone="the limit is raised",
        fires=(ticket("MemoryNearLimit"),),
        prepare=limit_memory,
        make=lambda scene: limit_memory(scene, 0.95),
        undo=limit_memory,
        unharmed=True,
    ),
    Fault(
        name="memory-grows",
        what=f"every batch leaves {LEAK_BYTES / 1e6:g} MB behind",
        undone="it does not, what is lost stays lost",
        fires=(ticket("MemoryGrowing"),),
        make=lambda scene: scene.levers.grow(LEAK_BYTES),
        undo=lambda scene: scene.levers.let_go(),
        may_fire=(*BUDGETS, *GONE),
        quicker=10.0,
    ),
    Fault(
        name="event-loop-late",
        what="every batch keeps the interpreter to itself for a tenth of a second or two",
        undone="it does not",
        fires=(ticket("EventLoopLag"),),
        make=lambda scene: scene.levers.lock(LOCK_COUNT),
        undo=lambda scene: scene.levers.let_go(),
        may_fire=(ticket("QueueOld"), *BUDGETS),
    ),
    Fault(
        name="gpu-fails",
        what=f"what stands for a dcgm-exporter reports XID {XID}",
        undone="the driver is loaded again",
        fires=(ticket("GpuXid"),),
        make=lambda scene: setattr(scene.dcgm, "xid", XID),
        undo=lambda scene: setattr(scene.dcgm, "xid", 0),
        unharmed=True,
    ),
)
