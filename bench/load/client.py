"""One client process: sends a plan's requests, on a schedule or back to back, and notes what became of each."""

import asyncio
import itertools
import random
import re
import select
import selectors
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from .connection import Answer, Connection, ConnectionFailed, ask, connect
from .plan import Plan, Shot, Target, Watch, arrivals, host_of
from .samples import NO_CONNECTION, OK, TIMEOUT, Samples

SLICE_SECONDS = 0.2  # between two looks at whether to stop early
READY_SECONDS = 1.0  # for an answer from /readyz
OVERLOADED = ("429", "503")
WRONG = re.compile(rb'"error"')


class PreciseSelector(selectors.EpollSelector):
    """epoll waits in whole milliseconds; select, on the epoll descriptor itself, in microseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


async def is_ready(target: Target) -> bool:
    """Whether /readyz says 200, on a connection of its own."""
    request = f"GET /readyz HTTP/1.1\r\nHost: {host_of(target)}\r\nConnection: close\r\n\r\n".encode()
    try:
        return (await ask(target, request, READY_SECONDS)).status == OK
    except (ConnectionFailed, TimeoutError):
        return False


class Endpoints:
    """Servers in turns: all that were named, or with a watch those that an endpoint controller would list.

    Args:
        ready: asks one server; tests bring their own.
    """

    def __init__(
        self,
        targets: tuple[Target, ...],
        watch: Watch | None = None,
        ready: Callable[[Target], Awaitable[bool]] = is_ready,
    ) -> None:
        self._watch, self._ready = watch, ready
        self._listed = dict.fromkeys(targets, True)
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def listed(self) -> list[Target]:
        """The servers that get requests now; all of them where none is known to be ready."""
        return [target for target, ready in self._listed.items() if ready] or list(self._listed)

    def next(self) -> Target:
        """The server whose turn it is."""
        self._turn += 1
        return self.listed[self._turn % len(self.listed)]

    def other(self, but: Target) -> Target:
        """A server that gets what another one refused; that one again where there is no other."""
        others = [target for target in self.listed if target != but] or [but]
        return others[self._turn % len(others)]

    def start(self) -> None:
        """Follow /readyz from now on, on the running loop."""
        if self._watch is not None:
            self._tasks = [asyncio.create_task(self._follow(target, self._watch)) for target in self._listed]

    def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, target: Target, watch: Watch) -> None:
        """Ask now and then, as a kubelet does; a change takes a while to be known, as with an endpoint controller."""
        loop, seen = asyncio.get_running_loop(), True
        while True:
            ready = await self._ready(target)
            if ready != seen:
                seen = ready
                loop.call_later(watch.delay_seconds, self._listed.__setitem__, target, ready)
            await asyncio.sleep(watch.every_seconds)


class Client:
    """Sends the requests of one plan.

    Args:
        begin: monotonic seconds at which the row begins.
    """

    def __init__(self, plan: Plan, begin: float) -> None:
        self._plan, self._begin = plan, begin
        self._random = random.Random(plan.seed + 1)
        self._endpoints = Endpoints(plan.targets, plan.watch)
        self._idle: dict[Target, list[Connection]] = defaultdict(list)
        self._open = 0
        self._wires: dict[tuple[int, Target], bytes] = {}
        self._good = [shot for shot in plan.shots if shot.good]
        self._malformed = [shot for shot in plan.shots if not shot.good]
        self._answer = re.compile(plan.answer, re.DOTALL) if plan.answer else None
        self._stopped = False
        self.samples = Samples()

    def stop(self) -> None:
        """Send nothing more; what is in flight is waited for."""
        self._stopped = True
        self.samples.stopped_after = time.monotonic() - self._begin

    async def run(self) -> Samples:
        """Run the whole plan."""
        cpu = time.process_time()
        self._endpoints.start()
        await asyncio.sleep(max(0.0, self._begin - time.monotonic()))
        await (self._open_loop() if self._plan.rate else self._closed_loop())
        self._endpoints.stop()
        for connection in itertools.chain.from_iterable(self._idle.values()):
            connection.close()
        self.samples.cpu_seconds = time.process_time() - cpu
        return self.samples

    async def _open_loop(self) -> None:
        """Send every request at its time, however many wait for an answer."""
        plan, tasks = self._plan, set[asyncio.Task[None]]()
        for start in arrivals(plan.arrivals, plan.rate, plan.seconds, plan.seed):
            due = self._begin + start
            while (wait := due - time.monotonic()) > 0 and not self._stopped:
                await asyncio.sleep(min(wait, SLICE_SECONDS))
            if self._stopped:
                break
            task = asyncio.create_task(self._one(start))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if wait < 0:
                await asyncio.sleep(0)  # behind schedule: let what was started go out, and answers come in
        if tasks:
            await asyncio.wait(tasks)

    async def _closed_loop(self) -> None:
        """Let each of the connections send its next request when it has its answer."""
        turns = iter(range(self._plan.requests)) if self._plan.requests else itertools.count()

        async def post_on() -> None:
            for _ in turns:
                now = time.monotonic() - self._begin
                if self._stopped or now >= self._plan.seconds:
                    return
                await self._one(now)

        await asyncio.gather(*(post_on() for _ in range(self._plan.connections)))

    async def _one(self, start: float) -> None:
        """Send one request, and note it from its intended start to its end."""
        malformed = self._malformed and self._random.random() < self._plan.malformed_share
        shot = self._random.choice(self._malformed if malformed else self._good)
        due, sent = self._begin + start, time.monotonic()
        outcome = await self._outcome(shot, due)
        self.samples.add(start, time.monotonic() - due, sent - due, outcome, shot.good)
        if not outcome.isdigit():
            await asyncio.sleep(0)  # where nobody can be reached, a closed loop must not keep out everything else

    async def _outcome(self, shot: Shot, due: float) -> str:
        """What became of a request; one that a server refuses is sent to another, where there is one."""
        target = self._endpoints.next()
        try:
            answer = await self._post(shot, target, due)
            if answer.status in OVERLOADED:
                self.samples.bare_refusals += not answer.retry_after
                other = self._endpoints.other(target)
                if self._plan.watch is not None and other != target:
                    self.samples.moved += 1
                    answer = await self._post(shot, other, due)
        except ConnectionFailed as failure:
            return failure.outcome
        except TimeoutError:
            return TIMEOUT
        if shot.good and answer.status == OK:
            self.samples.wrong += self._is_wrong(shot, answer)
        return answer.status

    async def _post(self, shot: Shot, target: Target, due: float) -> Answer:
        """Post over an idle connection, or a new one; the time that is left of the request's bounds both."""
        end = due + self._plan.timeout_seconds
        if end <= time.monotonic():
            raise TimeoutError
        connection = self._kept(target) or await self._connected(target, end - time.monotonic())
        key = id(shot), target
        if key not in self._wires:
            self._wires[key] = self._plan.wire(shot, target)
        try:
            return await connection.post(self._wires[key], end - time.monotonic())
        finally:
            if connection.usable:
                self._idle[target].append(connection)
            else:
                self._open -= 1

    def _kept(self, target: Target) -> Connection | None:
        while self._idle[target]:
            connection = self._idle[target].pop()
            if connection.usable:
                return connection
            self._open -= 1
        return None

    async def _connected(self, target: Target, seconds: float) -> Connection:
        if self._open >= self._plan.connections:
            raise ConnectionFailed(NO_CONNECTION)
        self._open += 1
        try:
            return await connect(target, seconds)
        except (ConnectionFailed, TimeoutError):
            self._open -= 1
            raise

    def _is_wrong(self, shot: Shot, answer: Answer) -> bool:
        """An answer with an error in it, or with what another request asked for."""
        if WRONG.search(answer.body):
            return True
        if self._answer is None or not shot.expected:
            return False
        match = self._answer.search(answer.body)
        return match is None or match[1] != shot.expected


def run_client(plan: Plan, begin: float, stop_when_readable: int | None = None) -> Samples:
    """Run a plan in this process.

    Args:
        stop_when_readable: a descriptor; the row ends early once it can be read.
    """

    async def go() -> Samples:
        client, loop = Client(plan, begin), asyncio.get_running_loop()

        def stop(descriptor: int) -> None:
            loop.remove_reader(descriptor)
            client.stop()

        if stop_when_readable is not None:
            loop.add_reader(stop_when_readable, stop, stop_when_readable)
        return await client.run()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        return runner.run(go())
