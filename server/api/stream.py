"""Streams results as they finish: one JSON line an image (NDJSON), in any order, and one line at the end."""

import asyncio
from collections import Counter

from starlette.types import Send

from ...inference.results import TopClasses
from ..errors import ClientDisconnected, ServiceError
from ..http.disconnect import cancel_on_disconnect
from ..http.parser_threads import ParserThreads
from ..scheduler.request import Outcome, outcome_label
from ..service.caller import Caller
from ..service.params import ClassifyParams
from .result import result_json

CONTENT_TYPE = b"application/x-ndjson"


class Stream:
    """Sends the lines of one request. `images`: how many it has; `put` takes the outcome of each."""

    def __init__(self, params: ClassifyParams, images: int, caller: Caller, send: Send, parsers: ParserThreads) -> None:
        self._params, self._caller, self._send, self._parsers = params, caller, send, parsers
        self._ready: asyncio.Queue[tuple[int, Outcome] | None] = asyncio.Queue()
        self._open = set(range(images))
        self.counts: Counter[str] = Counter()  # images by how they ended

    def put(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of an image; called on the event loop."""
        self._ready.put_nowait((index, outcome))

    async def run(self, waiter: "asyncio.Future[None]", seconds: float) -> None:
        """Send everything within `seconds`; each image without an answer by then gets an error. Raises
        ClientDisconnected where the client has gone."""
        waiter.add_done_callback(lambda _: self._ready.put_nowait(None))
        receive, context = self._caller.receive, self._caller.context
        headers = [(b"content-type", CONTENT_TYPE), (b"server-timing", context.server_timing())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with asyncio.timeout(seconds), cancel_on_disconnect(waiter, receive, context.disconnect):
                await self._lines(waiter)
        except TimeoutError:
            error = ServiceError("deadline", f"no answer within {round(self._params.timeout_seconds * 1e3)} ms")
            await self._give_up(error)
        except ServiceError as error:
            await self._give_up(error)
        except ClientDisconnected:
            self.counts["cancelled"] += len(self._open)
            raise
        await self._end()

    async def _lines(self, waiter: "asyncio.Future[None]") -> None:
        while self._open:
            done = [await self._ready.get()]
            while not self._ready.empty():
                done.append(self._ready.get_nowait())
            if finished := [result for result in done if result is not None]:
                await self._write(finished)
            if None in done and waiter.done() and self._open and self._ready.empty():
                waiter.result()  # raises what ended it before all were done

    async def _give_up(self, error: ServiceError) -> None:
        await self._write([(index, error) for index in sorted(self._open)])

    async def _write(self, done: list[tuple[int, Outcome]]) -> None:
        params = self._params
        cost = params.cost * sum(isinstance(outcome, TopClasses) for _, outcome in done)
        lines = await self._parsers.run(lambda: b"".join(_line(params, *place) for place in done), cost)
        for index, outcome in done:  # only now: a deadline in between gives each of them an error
            self._open.discard(index)
            self.counts[outcome_label(outcome)] += 1
        await self._send({"type": "http.response.body", "body": lines, "more_body": True})

    async def _end(self) -> None:
        ok, total = self.counts["ok"], self.counts.total()
        opening, request_id = self._params.opening_json, self._caller.context.request_id
        body = b'%b%b", "images": %d, "succeeded": %d}\n' % (opening, request_id, total, ok)
        await self._send({"type": "http.response.body", "body": body})


def _line(params: ClassifyParams, index: int, outcome: Outcome) -> bytes:
    """Write {"image": 3, "predictions": [...]}, or "error" instead of predictions."""
    result = result_json(params, outcome)
    return b'{"image": %d, %b\n' % (index, result[1:])
