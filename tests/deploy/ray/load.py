"""Clients that ask one request after the other and lose count of nothing: each try has an end, each request too."""

import asyncio
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

CLIENTS = 12
TRIES = 8
TRY_SECONDS = 30.0
AGAIN_SECONDS = 0.1
FIRST_SECONDS = 300.0
WORDS = {httpx.ConnectError: "refused", httpx.TimeoutException: "timeout"}


@dataclass
class Books:
    """What became of the requests of one load.

    Args:
        sent: requests begun.
        tries: by how they ended: a status, `lost` (the connection broke), `refused` (nobody listens), `timeout`.
        answers: name of a picture and what was said of it, by how often.
        seconds: of each answered request, from its first try on, by when it began (`time.monotonic`).
        given_up: requests that no try answered.
        bare: 503 without a `Retry-After`.
    """

    sent: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    given_up: int = 0
    bare: int = 0

    def percentile_ms(self, share: float, since: float = 0.0, until: float = float("inf")) -> float:
        """Nearest rank, of answered requests that began between two moments."""
        values = sorted(taken for began, taken in self.seconds if since <= began < until)
        return 1e3 * values[math.ceil(share * len(values)) - 1]


def said(answer: httpx.Response) -> str:
    """The part of an answer that does not change from one request to the next."""
    return json.dumps(answer.json()["results"])


async def one_try(client: httpx.AsyncClient, body: bytes, books: Books) -> httpx.Response | None:
    """Ask once; None where no answer came."""
    answer = None
    try:
        answer = await client.post("/classify", content=body)
        how = str(answer.status_code)
    except httpx.TransportError as error:
        how = next((how for kind, how in WORDS.items() if isinstance(error, kind)), "lost")
    books.tries[how] += 1
    return answer


async def classify(client: httpx.AsyncClient, name: str, body: bytes, books: Books) -> None:
    """A request by the rule of docs/ray.md: after 503 wait as told, after 500 or no answer ask again soon."""
    books.sent += 1
    began = time.monotonic()
    for _ in range(TRIES):
        answer = await one_try(client, body, books)
        if answer is None or answer.status_code == 500:
            await asyncio.sleep(AGAIN_SECONDS)
        elif answer.status_code == 503:
            told = answer.headers.get("retry-after", "")
            books.bare += not told.isdigit()
            await asyncio.sleep(min(2, int(told)) if told.isdigit() else 1)
        elif answer.status_code == 200:
            books.answers[name, said(answer)] += 1
            books.seconds.append((began, time.monotonic() - began))
            return
        else:
            break
    books.given_up += 1
    await asyncio.sleep(AGAIN_SECONDS)


def under_load(url: str, bodies: Mapping[str, bytes], happens: Callable[[], object]) -> Books:
    """Have clients ask; once one is answered, something happens, which may block; then every request has its end."""
    books, over = Books(), threading.Event()

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=TRY_SECONDS, trust_env=False) as client:
            for name, body in itertools.islice(itertools.cycle(bodies.items()), number, None):
                if over.is_set():
                    return
                await classify(client, name, body, books)

    async def run() -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(ask(number))
            try:
                async with asyncio.timeout(FIRST_SECONDS):
                    while not books.answers:
                        await asyncio.sleep(AGAIN_SECONDS)
                await asyncio.to_thread(happens)
            finally:
                over.set()

    asyncio.run(run())
    return books
