"""What a program of a Gluon kernel runs on: partitions, barriers, shared memory, wgmma, and the order between them.

What is asynchronous on a GPU happens here as early or as late as the kernel's own waits allow, and what may not be read
yet, or no longer, is NaN:

- a TMA load makes its tile NaN when it is issued, and writes it at once or when a wait needs it;
- an asynchronous wgmma reads shared memory when it is issued, or at the wait for it; its sums cannot be read before;
- what a partition stored in shared memory is NaN for wgmma until the partition's `fence_async_shared`;
- a partition is a thread, and one of them runs at a time: each until it has to wait, or always the first that can, in
  an order that a seed shuffles now and then (as in PCT: Burckhardt et al., ASPLOS 2010).

A deadlock, more arrivals or bytes than a barrier was told, and an access before the launch before is over are errors.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SHUFFLED = 1 / 16
"""How often the order of partitions changes at an operation."""


class SynchronisationError(RuntimeError):
    """The kernel's partitions, loads or products are not in the order that its results need."""


@dataclass(frozen=True)
class Mode:
    """When things happen that a kernel does not order.

    Args:
        late: loads and products are as late as waits allow, not at once.
        seed: of the order of partitions, of which the first that can go on runs, looked for at every operation; with
            None they run in turn, each as far as it comes.
    """

    late: bool = False
    seed: int | None = None


@dataclass
class Partition:
    """A thread of control: one warp or warpgroup of `warp_specialize`."""

    ready: Callable[[], bool] = lambda: True
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    unfenced: list[Tensor] = field(default_factory=list)
    products: list["Accumulator"] = field(default_factory=list)

    def end(self) -> None:
        if self.products:
            raise SynchronisationError(f"{len(self.products)} products are under way as their partition ends")


class Machine:
    """One program, which begins as one partition.

    Args:
        mode: when things happen.
        dependent: the launch before it may still run, until `launch_is_over`.
    """

    def __init__(self, mode: Mode, *, dependent: bool = False) -> None:
        self.late, self.dependent = mode.late, dependent
        self.random = None if mode.seed is None else random.Random(mode.seed)
        self.alive: list[Partition] = []  # by priority, where there is a seed
        self.error: BaseException | None = None
        self.barriers: list[Barrier] = []
        self._first, self._local = Partition(), threading.local()

    @property
    def partition(self) -> Partition:
        """The one that runs now."""
        partition: Partition = getattr(self._local, "partition", self._first)
        return partition

    def specialize(self, functions: Sequence[Callable[[], object]]) -> None:
        """Run a partition for each function, until all have ended."""
        if self.alive or self.partition is not self._first:
            raise NotImplementedError("warp_specialize within a partition")
        self.alive = [Partition() for _ in functions]
        pairs = list(zip(self.alive, functions, strict=True))
        threads = [threading.Thread(target=self._run, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        self._pass_on(None)
        for thread in threads:
            thread.join()
        if self.error:
            raise self.error

    def end(self) -> None:
        """Check that nothing is under way when the program ends."""
        self._first.end()
        if any(barrier.landing for barrier in self.barriers):
            raise SynchronisationError("loads are under way as the program ends")

    def step(self) -> None:
        """Let another partition run, where a seed gives it precedence; every operation begins with this."""
        if self.random and self.alive:
            if self.random.random() < SHUFFLED:
                self.random.shuffle(self.alive)
            self.wait(lambda: True)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let others run until `ready()`."""
        partition = self.partition
        partition.ready = ready
        if not self.alive:
            if not ready():
                raise SynchronisationError("deadlock: the only partition waits")
        elif self.random or not ready():
            self._pass_on(partition)
            partition.turn.acquire()
        partition.ready = lambda: True
        if self.error:
            raise self.error

    def need_launch_before(self, what: str) -> None:
        """Refuse what must not happen while the launch before still runs."""
        if self.dependent:
            raise SynchronisationError(f"{what} before gdc_wait: the launch before may still run")

    def _run(self, partition: Partition, function: Callable[[], object]) -> None:
        self._local.partition = partition
        partition.turn.acquire()
        try:
            if not self.error:
                function()
                partition.end()
        except BaseException as error:
            self.error = self.error or error
        before = self.alive[self.alive.index(partition) - 1]
        self.alive.remove(partition)
        self._pass_on(before if self.alive else None)

    def _pass_on(self, partition: Partition | None) -> None:
        """Give the turn to a partition that can go on: the first one, or without a seed the next one behind this."""
        start = 0 if self.random or partition is None else self.alive.index(partition) + 1
        able = [other for other in self.alive[start:] + self.alive[:start] if other.ready()]
        if self.alive and not able and not self.error:
            self.error = SynchronisationError(f"deadlock: {len(self.alive)} partitions all wait")
        for other in self.alive[:1] if self.error else able[:1]:
            other.turn.release()


class Barrier:
    """An mbarrier: a phase ends after so many arrivals, when the bytes that were expected have landed."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.count, self.left, self.phase, self.bytes = machine, 0, 0, 0, 0
        self.landing: list[tuple[int, Callable[[], None]]] = []
        machine.barriers.append(self)

    def init(self, count: int) -> None:
        if self.count:
            raise SynchronisationError("a barrier is initialised twice")
        self.count = self.left = count

    def arrive(self, count: int = 1) -> None:
        self._check()
        if self.left < count:
            raise SynchronisationError("more arrivals than the barrier counts")
        self.left -= count
        self._end_phase()

    def expect(self, size: int) -> None:
        self.bytes += size
        self.arrive()

    def wait(self, phase: int) -> None:
        """Wait until the phase of this parity, 0 or 1, has ended; loads that it needs land at the latest now."""
        self._check()
        if phase not in (0, 1):
            raise NotImplementedError(f"phase {phase}: a parity is 0 or 1")
        self.machine.wait(lambda: self._ended(phase))

    def load(self, size: int, land: Callable[[], None]) -> None:
        """Take a load's bytes: now, or at a wait."""
        self._check()
        if size > self.bytes - sum(size for size, _ in self.landing):
            raise SynchronisationError("more bytes are loaded than the barrier expects")
        self.landing.append((size, land))
        if not self.machine.late:
            self._land()

    def _ended(self, phase: int) -> bool:
        if self.phase & 1 == phase and not self.left and self.bytes == sum(size for size, _ in self.landing):
            self._land()
        return self.phase & 1 != phase

    def _land(self) -> None:
        for size, land in self.landing:
            land()
            self.bytes -= size
        self.landing = []
        self._end_phase()

    def _end_phase(self) -> None:
        if not (self.left or self.bytes or self.landing):
            self.phase, self.left = self.phase + 1, self.count

    def _check(self) -> None:
        if not self.count:
            raise SynchronisationError("a barrier is used before it is initialised")


@dataclass(frozen=True)
class Shared:
    """Shared memory, or a part of it; NaN before the first store.

    Args:
        machine: whose.
        value: its numbers.
        unfenced: which of them wgmma does not see yet.
    """

    machine: Machine
    value: Tensor
    unfenced: Tensor

    @classmethod
    def allocate(cls, machine: Machine, dtype: torch.dtype, shape: Sequence[int]) -> "Shared":
        return cls(
            machine, torch.full(tuple(shape), torch.nan, dtype=dtype), torch.zeros(tuple(shape), dtype=torch.bool)
        )

    def part(self, choose: Callable[[Tensor], Tensor]) -> "Shared":
        return Shared(self.machine, choose(self.value), choose(self.unfenced))

    def write(self, value: Tensor) -> None:
        """Store what a partition has in registers."""
        if value.shape != self.value.shape or value.dtype != self.value.dtype:
            raise NotImplementedError(
                f"{value.dtype} {tuple(value.shape)} into {self.value.dtype} {tuple(self.value.shape)}"
            )
        self.value.copy_(value)
        self.unfenced.fill_(True)
        self.machine.partition.unfenced.append(self.unfenced)

    def load(self, data: Tensor, barrier: Barrier) -> None:
        """Load a tile by TMA."""
        if data.shape != self.value.shape or data.dtype != self.value.dtype:
            raise NotImplementedError(f"a tile {tuple(data.shape)} into shared memory {tuple(self.value.shape)}")

        def land() -> None:
            self.value.copy_(data)
            self.unfenced.fill_(False)

        self.value.fill_(torch.nan)
        barrier.load(data.numel() * data.element_size(), land)

    def seen_by_wgmma(self) -> Tensor:
        return self.value.float().masked_fill(self.unfenced, torch.nan)


class Accumulator:
    """Sums in registers that products under way add to; they can be read after a wait.

    Args:
        sums: float32, or None while `product` has not been computed.
        product: what computes them.
    """

    def __init__(self, sums: Tensor | None, product: Callable[[], Tensor] | None = None) -> None:
        self.sums, self.product = sums, product

    def finish(self) -> Tensor:
        if self.sums is None:
            assert self.product
            self.sums = self.product()
        return self.sums


def multiply(machine: Machine, a: Shared, b: Shared, sums: Accumulator, *, adds: bool) -> Accumulator:
    """Begin sums + a b, or a b where it does not add; sums of earlier products are finished before."""

    def product() -> Tensor:
        before = sums.finish()
        return (before if adds else torch.zeros_like(before)) + a.seen_by_wgmma() @ b.seen_by_wgmma()

    under_way = Accumulator(None, product)
    if not machine.late:
        under_way.finish()
    machine.partition.products.append(under_way)
    return under_way


def finish_products(machine: Machine, but: int) -> set[Accumulator]:
    """Wait for all products of this partition but the last few, and return those that are still under way."""
    products = machine.partition.products
    done = products[: len(products) - but]
    for accumulator in done:
        accumulator.finish()
    machine.partition.products = products[len(done) :]
    return set(machine.partition.products)
