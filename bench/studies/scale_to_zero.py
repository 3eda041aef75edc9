"""Scale to zero on one machine: a proxy starts a server at the first request and stops it when it is idle.

    python -m milkweed.bench.studies.scale_to_zero [--starts 100]
    python -m milkweed.bench.studies.scale_to_zero --command 'other/.venv/bin/milkweed serve --port {port} ...'

The first life of the server is the reference: its answers are the right ones, and its times space the traffic, an open
loop that is drawn from them beforehand. Bursts of independent requests begin from shortly before the server is told to
stop to shortly after it has ended, whatever it does. The proxy goes on sending to a server that stops for as long as
that lets anybody in, as an endpoint controller does that hears of it late; who cannot connect any more waits for the
next server, which starts at once. Nothing that a server has accepted is sent again: a lost answer is lost.

A request is lost unless it is answered 200 with the top-1 of the reference. The exit code is 1 where one is, or where a
server ended with another code than 0.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..bodies import jpegs, pictures
from ..load.connection import Answer, Connection, ConnectionFailed, ask, connect, learned
from ..load.plan import Plan, Shot, arrivals, host_of
from ..load.samples import OK, percentile
from ..machine import about
from ..process import ASK_EVERY_SECONDS, free_port, running_process, usage

COMMAND = "milkweed serve --port {port} --metrics-port 0 --backend %s %s"
END_SECONDS, ANSWER_SECONDS = 60.0, 180.0
# A connection of this machine is open at once, unless the server that stops lets nobody new in: then it never is.
CONNECT_SECONDS = 0.25
TOP_1 = re.compile(rb'"index":\s*(\d+)')
BARS, BAR = 12, 50  # of the histogram, and letters of the longest


class Life:
    """One server process, from the request that starts it to its exit; it is followed by a thread.

    Args:
        arrival: of that request, by the monotonic clock.
        beside: whether the server before is still there.
    """

    def __init__(self, command: str, idle_seconds: float, arrival: float, beside: bool) -> None:
        self.arrival, self.target = arrival, ("127.0.0.1", free_port())
        self.holds = 0  # requests that wait for it, or for its answer
        self.stopping = False
        self.ready: Future[None] = Future()
        self.row: dict[str, Any] = {"beside_the_one_before": beside}
        self._idle_seconds, self._touched = idle_seconds, arrival
        self.task = asyncio.create_task(asyncio.to_thread(self._live, command.format(port=self.target[1])))
        self.task.add_done_callback(lambda _: print(self.row, flush=True))

    def note(self, name: str, since: float) -> None:
        """Keep the milliseconds since a moment."""
        self.row[f"{name}_ms"] = round(1e3 * (time.monotonic() - since), 1)

    def release(self) -> None:
        """One request less."""
        self.holds -= 1
        self._touched = time.monotonic()

    def _live(self, command: str) -> None:
        program, *arguments = shlex.split(command)
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        argv, url = [shutil.which(program, path=path) or program, *arguments], f"http://{host_of(self.target)}/readyz"
        try:
            with running_process(argv, url, "the server did not start", END_SECONDS) as process:
                self.note("ready", self.arrival)
                self._touched = time.monotonic()
                self.ready.set_result(None)
                while process.poll() is None and (self.holds or time.monotonic() < self._touched + self._idle_seconds):
                    time.sleep(ASK_EVERY_SECONDS)
                self.row["rss_mb"] = round(usage(process.pid, proportional=False).rss_bytes / 1e6, 1)
                self.stopping, told = True, time.monotonic()
            self.note("stop", told)
            self.row["exit_code"] = process.returncode
        except (OSError, RuntimeError) as error:
            self.row["exit_code"] = str(error)
            self.ready.set_exception(RuntimeError(str(error)))


class Proxy:
    """Takes HTTP requests, of which it needs Content-Length, and has a server answer them, which need not be there.

    Attributes:
        lives: every server so far.
        answered_while_stopping: requests that a server took and answered after it was told to stop.
        handed_on: requests that a stopping server did not let in, and the next one got.
    """

    def __init__(self, command: str, idle_seconds: float) -> None:
        self.lives: list[Life] = []
        self.answered_while_stopping = self.handed_on = 0
        self._command, self._idle_seconds = command, idle_seconds
        self._given_up = False  # whether the newest life lets nobody in any more

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a client; 502 where that cannot be."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        request = head + await reader.readexactly(int(length[1]) if length else 0)
        try:
            answer = await self.answer(request)
        except (ConnectionFailed, TimeoutError, RuntimeError) as error:
            answer = Answer("502", str(error)[-300:].encode(), False)
        lines = f"HTTP/1.1 {answer.status} -", f"Content-Length: {len(answer.body)}", "Connection: close"
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body)
        writer.close()

    async def answer(self, request: bytes) -> Answer:
        """The answer of the server that is there, or of the next.

        Raises:
            ConnectionFailed, TimeoutError: the server took the request and did not answer, or was not told to stop.
            RuntimeError: it did not start.
        """
        arrival = time.monotonic()
        while True:
            life = self._life(arrival)
            life.holds += 1
            try:
                if (connection := await self._connection(life)) is None:
                    self.handed_on += 1
                    continue
                answer = await connection.post(request, ANSWER_SECONDS)
            finally:
                life.release()
            connection.close()
            self.answered_while_stopping += life.stopping
            if life.arrival == arrival:
                life.note("first_answer", arrival)
            return answer

    def _life(self, arrival: float) -> Life:
        """The newest server, or another where that one is stopping and lets nobody in, or has ended."""
        there = bool(self.lives) and not self.lives[-1].task.done()
        if self._given_up or not there:
            self.lives.append(Life(self._command, self._idle_seconds, arrival, there))
            self._given_up = False
        return self.lives[-1]

    async def _connection(self, life: Life) -> Connection | None:
        """A connection to the server once it is ready; None where it stops and lets nobody in."""
        await asyncio.shield(asyncio.wrap_future(life.ready))
        try:
            return await connect(life.target, CONNECT_SECONDS)
        except (ConnectionFailed, TimeoutError):
            if not life.stopping:
                raise
        self._given_up = self._given_up or life is self.lives[-1]
        return None


async def send(plan: Plan, shot: Shot, outcomes: Counter[str]) -> None:
    """Send one request and count what becomes of it."""
    (target,) = plan.targets
    try:
        answer = await ask(target, plan.wire(shot, target), plan.timeout_seconds)
        outcome = answer.status
        if outcome == OK and TOP_1.findall(answer.body)[:1] != [shot.expected]:
            outcome = "wrong"
    except (ConnectionFailed, TimeoutError) as failure:
        outcome = str(failure) or "timeout"
    outcomes[outcome] += 1


def schedule(options: argparse.Namespace, first_answer: float, stop: float) -> Iterator[float]:
    """When requests start, seconds from the beginning: bursts, and gaps that end around the stop of the server.

    Args:
        first_answer: seconds until a server that starts answers.
        stop: seconds from the signal to its exit.
    """
    draws, at = random.Random(options.seed), 0.0
    while True:
        yield at
        burst = arrivals("poisson", options.rate, options.burst_seconds, draws.randrange(1 << 30))
        yield from (at + offset for offset in burst)
        idle = max(first_answer, options.burst_seconds) + options.idle_seconds
        at += idle + draws.uniform(-0.2 * stop, 1.3 * stop)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let traffic start the server so often; the rows of its lives and what became of the requests.

    Raises:
        RuntimeError: the reference did not start or answer.
    """
    proxy, draws, outcomes = Proxy(options.command, options.idle_seconds), random.Random(options.seed), Counter[str]()
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listener:
        shots = tuple(Shot(body, "image/jpeg") for body in jpegs(pictures(64)))
        targets = (listener.sockets[0].getsockname(),)
        plan = Plan(targets, "/classify", shots, 0.0, timeout_seconds=ANSWER_SECONDS, answer=TOP_1.pattern)
        plan = await asyncio.to_thread(learned, plan)
        reference = proxy.lives[0]
        await reference.task
        times = (reference.row[name] / 1e3 for name in ("first_answer_ms", "stop_ms"))
        sent, begin = list[asyncio.Task[None]](), time.monotonic()
        for due in schedule(options, *times):
            await asyncio.sleep(begin + due - time.monotonic())
            if len(proxy.lives) > options.starts or due > options.seconds:
                break
            sent.append(asyncio.create_task(send(plan, draws.choice(plan.shots), outcomes)))
        await asyncio.gather(*sent)
        await asyncio.gather(*(life.task for life in proxy.lives))
    return {
        "outcomes": dict(outcomes),
        "answered_while_stopping": proxy.answered_while_stopping,
        "handed_on": proxy.handed_on,
        "lives": [life.row for life in proxy.lives[1:]],
    }


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What all lives come to: nearest-rank percentiles."""
    lives, requests = found["lives"], sum(found["outcomes"].values())
    columns = {name: sorted(row[name] for row in lives if row.get(name)) for name in ("first_answer_ms", "rss_mb")}
    return {
        "starts": len(lives),
        "beside_the_one_before": sum(row["beside_the_one_before"] for row in lives),
        "requests": requests,
        "lost": requests - found["outcomes"].get(OK, 0),
        "unclean_ends": sum(row["exit_code"] != 0 for row in lives),
        **{
            name: values and {f"p{q}": percentile(values, q) for q in (50, 90, 100)} for name, values in columns.items()
        },
    }


def histogram(values: Sequence[float]) -> Iterator[str]:
    """Bars of equally wide ranges, from the least value to the greatest."""
    least, width = min(values), (max(values) - min(values)) / BARS or 1.0
    counts = Counter(min(BARS - 1, int((value - least) / width)) for value in values)
    for place in range(max(counts) + 1):
        bar = "#" * -(-BAR * counts[place] // max(counts.values()))
        yield f"{least + place * width:8.0f} ms {counts[place]:4d} {bar}".rstrip()


def report(found: dict[str, Any]) -> None:
    """Print what a person wants to know."""
    print(
        "{starts} starts, {beside_the_one_before} of them while the server before was stopping\n"
        "{requests} requests, {lost} lost: {outcomes}\n"
        "{answered_while_stopping} answered by a stopping server, {handed_on} handed on to the next\n"
        "{unclean_ends} ends with another exit code than 0\n"
        "first answer, ms: {first_answer_ms}; resident, MB: {rss_mb}".format(**found)
    )
    first = [row["first_answer_ms"] for row in found["lives"] if "first_answer_ms" in row]
    print(*(histogram(first) if first else ()), sep="\n")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the whole command of the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=100, help="of the server, by traffic")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which there is no more traffic")
    parser.add_argument("--model", default="", metavar="[NAME=]BUNDLE", help="default: the demo model")
    parser.add_argument("--backend", default="milkweed", help="fixed, so that no start measures which is fastest")
    parser.add_argument("--command", help="of the server, with {port}, in the place of --model and --backend")
    parser.add_argument("--idle-seconds", type=float, default=0.5, help="without requests, until the server is stopped")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second of a burst")
    parser.add_argument("--burst-seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench/results/scale_to_zero.json"))
    options = parser.parse_args(arguments)
    options.command = options.command or (COMMAND % (options.backend, options.model)).strip()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each life as it ends, the first one being the reference, then the histogram; write all as JSON."""
    options, load = parsed(arguments), os.getloadavg()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = asyncio.run(measure(options))
    except RuntimeError as error:
        print(f"scale_to_zero: {error}", file=sys.stderr)
        return 2
    found = {**summary(found), **found}
    settings = {name: getattr(options, name) for name in ("command", "idle_seconds", "rate", "burst_seconds", "seed")}
    options.out.write_text(json.dumps({**about("scale_to_zero", load), **settings, **found}, indent=1) + "\n")
    report(found)
    print(f"wrote {options.out}")
    return int(found["lost"] > 0 or found["unclean_ends"] > 0)


if __name__ == "__main__":
    sys.exit(main())
