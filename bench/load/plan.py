"""What a client process is told to do: plain data, sent over a pipe, and the schedule of the requests' starts."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

Target = tuple[str, int]  # host and port of a server
Headers = tuple[tuple[str, str], ...]
ARRIVALS = ("poisson", "fixed")
KINDS = ("raw", "multipart", "json", "npy")  # of bodies


def target_of(url: str) -> Target:
    """Host and port of an http URL.

    Raises:
        ValueError: another scheme, or no host.
    """
    match = re.fullmatch(r"http://(\[[^\]]+\]|[^/:]+)(?::(\d+))?/?", url)
    if match is None:
        raise ValueError(f"url {url!r}: expected http://HOST:PORT")
    return match[1].strip("[]"), int(match[2] or 80)


def host_of(target: Target) -> str:
    """What the header Host says of a server."""
    host, port = target
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Shot:
    """One request as it goes over the wire.

    Args:
        content_type: of the body; none is sent where it is empty.
        good: whether a server should answer it with 200.
        expected: what `Plan.answer` finds in the right answer; not compared where empty.
    """

    body: bytes
    content_type: str
    good: bool = True
    expected: bytes = b""
    headers: Headers = ()


@dataclass(frozen=True)
class Watch:
    """How a client hears of servers that come and go: an endpoint controller's view of /readyz, some time later.

    Args:
        every_seconds: between two questions.
        delay_seconds: until what was seen reaches the client.
    """

    every_seconds: float = 0.1
    delay_seconds: float = 0.4


@dataclass(frozen=True)
class Plan:
    """One row of load.

    Args:
        targets: the servers, which are taken in turns.
        path: of the request, with its query.
        shots: good and malformed requests; drawn at random.
        seconds: of sending; answers are waited for after that.
        rate: requests a second in an open loop; 0 = closed loop.
        connections: in a closed loop, those that post; in an open loop, the most there may be.
        requests: after which a closed loop ends before its time; 0 = it does not.
        timeout_seconds: after which a request is given up and its connection closed.
        malformed_share: of requests that are drawn from the malformed shots.
        answer: regular expression with one group, what a right answer is told by; none where empty.
        watch: how readiness is followed; None = every target always gets requests.
    """

    targets: tuple[Target, ...]
    path: str
    shots: tuple[Shot, ...]
    seconds: float
    rate: float = 0.0
    arrivals: str = "poisson"
    connections: int = 32
    requests: int = 0
    timeout_seconds: float = 10.0
    malformed_share: float = 0.0
    headers: Headers = ()
    answer: bytes = b""
    watch: Watch | None = None
    seed: int = 0

    def wire(self, shot: Shot, target: Target) -> bytes:
        """The bytes of a request to one of the targets."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {host_of(target)}", f"Content-Length: {len(shot.body)}"]
        if shot.content_type:
            lines.append(f"Content-Type: {shot.content_type}")
        lines += [f"{name}: {value}" for name, value in (*shot.headers, *self.headers)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + shot.body

    def share(self, number: int, of: int) -> "Plan":
        """The part of one of several client processes."""
        connections, requests = (whole // of + (number < whole % of) for whole in (self.connections, self.requests))
        return replace(
            self,
            rate=self.rate / of,
            connections=max(1, connections),
            requests=max(requests, min(1, self.requests)),
            seed=self.seed + 7919 * number,
        )


def arrivals(kind: str, rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Intended starts in seconds from the beginning, ascending, all below `seconds`, whatever the server does.

    Args:
        kind: one of ARRIVALS: poisson = independent arrivals, gaps exponential with mean 1 / rate; fixed = equal gaps.
        rate: requests a second in the mean.

    Raises:
        ValueError: another kind, or a rate that is not positive.
    """
    if not rate > 0:
        raise ValueError(f"rate {rate}: must be above 0")
    if kind not in ARRIVALS:
        raise ValueError(f"arrivals {kind!r}: expected one of {', '.join(ARRIVALS)}")
    if kind == "fixed":
        yield from (number / rate for number in range(round(rate * seconds)))
        return
    random_gap = random.Random(seed).expovariate
    at = random_gap(rate)
    while at < seconds:
        yield at
        at += random_gap(rate)
