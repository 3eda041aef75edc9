"""Results as they finish: one JSON line an image (NDJSON), in whatever order, and one line at the end."""

import asyncio
from collections import Counter

from starlette.types import Send

from ...inference.results import SCORE_COST, Predictions
from ..errors import ClientDisconnected, ServiceError
from ..http.disconnect import cancel_on_disconnect
from ..http.parsers import Parsers
from ..repository.model_info import ModelInfo
from ..scheduler.request import Outcome, Request
from ..service.params import ClassifyParams
from ..service.submit import Requester
from .outcomes import outcome_label

CONTENT_TYPE = b"application/x-ndjson"


def wants_stream(headers: dict[bytes, bytes]) -> bool:
    """Whether a request asks for lines."""
    return any(
        kind.partition(b";")[0].strip().lower() == CONTENT_TYPE for kind in headers.get(b"accept", b"").split(b",")
    )


class Stream:
    """The lines of one request, whose request has been submitted or has nothing to wait for.

    Args:
        request: its `listener` is this object's `put`; places that were refused before have their outcome.
    """

    def __init__(
        self, params: ClassifyParams, request: Request, requester: Requester, send: Send, parsers: Parsers
    ) -> None:
        self._params, self._requester, self._send, self._parsers = params, requester, send, parsers
        self._ready: asyncio.Queue[tuple[int, Outcome] | None] = asyncio.Queue()
        self._open = set(range(len(request.outcomes)))
        self.counts: Counter[str] = Counter()  # images by how they ended
        for place, outcome in enumerate(request.outcomes):
            if outcome is not None:
                self.put(place, outcome)
        request.listener = self.put

    def put(self, place: int, outcome: Outcome) -> None:
        """An image is done. Belongs to the event loop."""
        self._ready.put_nowait((place, outcome))

    async def run(self, waiter: "asyncio.Future[None]", seconds: float) -> None:
        """Send everything within so many seconds; images without an answer by then get an error each.

        Raises:
            ClientDisconnected: nobody reads any more.
        """
        waiter.add_done_callback(lambda _: self._ready.put_nowait(None))
        receive, trace = self._requester.receive, self._requester.context
        headers = [(b"content-type", CONTENT_TYPE), (b"server-timing", trace.server_timing())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with asyncio.timeout(seconds), cancel_on_disconnect(waiter, receive, trace.disconnect):
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
            finished = [each for each in done if each is not None]
            if finished:
                await self._write(finished)
            if None in done and waiter.done() and self._open and self._ready.empty():
                waiter.result()  # raises what ended it before all were done

    async def _give_up(self, error: ServiceError) -> None:
        await self._write([(place, error) for place in sorted(self._open)])

    async def _write(self, done: list[tuple[int, Outcome]]) -> None:
        model, top_k = self._params.model, self._params.top_k
        cost = SCORE_COST * top_k * sum(isinstance(outcome, Predictions) for _, outcome in done)
        lines = await self._parsers.run(lambda: b"".join(_line(model, *each) for each in done), cost)
        for place, outcome in done:  # not before: a deadline in between gives each of them an error
            self._open.discard(place)
            self.counts[outcome_label(outcome)] += 1
        await self._send({"type": "http.response.body", "body": lines, "more_body": True})

    async def _end(self) -> None:
        ok, total = self.counts["ok"], self.counts.total()
        body = b'%b%b", "images": %d, "succeeded": %d}\n' % (
            self._params.model.head_json,
            self._requester.context.request_id,
            total,
            ok,
        )
        await self._send({"type": "http.response.body", "body": body})


def _line(model: ModelInfo, place: int, outcome: Outcome) -> bytes:
    """{"image": 3, "predictions": [...]} or with "error"."""
    result = model.result_json(outcome, "")
    return b'{"image": %d, %b\n' % (place, result[1:])
