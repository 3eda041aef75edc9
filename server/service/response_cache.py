"""Response cache: a layer around the engine that gives known answers to images that come again.

The cache is a `submit.Answer` as what it wraps is, so a service can do without it. An entry is found by a
keyed digest of the encoded image, by the digest of everything in the model's bundle that an answer depends on, and by
the number of classes. Equal images that come while one of them is computed wait for that one (single flight).
"""

import asyncio
import hashlib
import secrets
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from ...inference.results import Predictions
from ..http.parser_threads import ParserThreads
from ..scheduler.request import Outcome
from ..telemetry.context import RequestContext
from .params import ClassifyParams
from .submit import Answer, CheckedImage, Requester

ENTRY_BYTES = 112
"""What the table itself takes for an entry, on average over its growth."""

Flight = asyncio.Future[Predictions | None]
"""An answer that is being computed; None where it will not come from there."""


class ResponseCache:
    """Calls `answer` for the images whose answers it does not have. Belongs to the event loop.

    Args:
        max_bytes: estimated memory of all entries, see `cost`; the least recently used ones go first.
        answer: what is asked about the other images.
        parsers: where large digests are made.
        registry: where the cache's metrics are shown.
    """

    def __init__(self, max_bytes: int, answer: Answer, parsers: ParserThreads, registry: CollectorRegistry) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._answer, self._parsers = answer, parsers
        self._secret = secrets.token_bytes(32)  # nobody can make two images of one digest, nor guess one
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._flights: dict[bytes, Flight] = {}
        labels = ("model",)
        self._hits = Counter("milkweed_cache_hits_total", "Images not computed again.", labels, registry=registry)
        self._misses = Counter("milkweed_cache_misses_total", "Images computed.", labels, registry=registry)
        self._evictions = Counter(
            "milkweed_cache_evictions_total", "Answers dropped for newer ones.", registry=registry
        )
        size = Gauge("milkweed_cache_bytes", "Memory of the answers that are kept, estimated.", registry=registry)
        size.set_function(lambda: self.bytes)
        entries = Gauge("milkweed_cache_entries", "Answers that are kept.", registry=registry)
        entries.set_function(lambda: len(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    async def __call__(
        self, params: ClassifyParams, images: Sequence[CheckedImage], requester: Requester
    ) -> list[Outcome]:
        """Answer one request as `submit.Answer` says; `Cache-Control: no-cache` and `no-store` go past the cache."""
        context = requester.context
        if _directives(context.headers) & {b"no-cache", b"no-store"}:
            context.notes["cache"] = "MISS"
            return await self._answer(params, images, requester)
        keys = await self._keys(params, images)
        bodies = {key: image for key, image in zip(keys, images, strict=True) if key is not None}
        answers: dict[bytes, Outcome] = {key: known for key in bodies if (known := self._known(key)) is not None}
        flights = {key: self._flights[key] for key in bodies if key not in answers and key in self._flights}
        computed = [key for key in bodies if key not in answers and key not in flights]
        answers |= await self._compute(computed, bodies, params, requester)
        for key, flight in flights.items():
            landed = await _wait_for(flight, requester)
            if landed is not None:
                answers[key] = landed
        lost = [key for key in flights if key not in answers]  # whoever computed these gave up: our turn
        answers |= await self._compute(lost, bodies, params, requester)
        self._count(params.model.name, context, sum(key is not None for key in keys), len(computed) + len(lost))
        return [answers[key] if key is not None else _refusal(image) for key, image in zip(keys, images, strict=True)]

    async def _compute(
        self, keys: Sequence[bytes], bodies: dict[bytes, CheckedImage], params: ClassifyParams, requester: Requester
    ) -> dict[bytes, Outcome]:
        """Have the images of some keys answered; whoever asks about one of them meanwhile waits for it."""
        if not keys:
            return {}
        flights: dict[bytes, Flight] = {key: asyncio.get_running_loop().create_future() for key in keys}
        self._flights |= flights
        answers: dict[bytes, Outcome] = {}
        try:
            outcomes = await self._answer(params, [bodies[key] for key in keys], requester)
            answers = dict(zip(keys, outcomes, strict=True))
            return answers
        finally:
            for key, flight in flights.items():
                outcome = answers.get(key)
                predictions = outcome if isinstance(outcome, Predictions) else None
                if predictions is not None:
                    self._keep(key, predictions)
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.set_result(predictions)

    async def _keys(self, params: ClassifyParams, images: Sequence[CheckedImage]) -> list[bytes | None]:
        """What finds each image's answer; None for what is no image."""
        bodies = [image[0] if isinstance(image, tuple) else None for image in images]
        size = sum(len(body) for body in bodies if body is not None)
        digests = await self._parsers.run(lambda: self._digests(bodies), size)
        tail = params.model.digest + struct.pack("<I", params.top_k)
        return [None if digest is None else digest + tail for digest in digests]

    def _digests(self, bodies: Iterable[bytes | None]) -> list[bytes | None]:
        key = self._secret
        return [None if body is None else hashlib.blake2b(body, digest_size=16, key=key).digest() for body in bodies]

    def _known(self, key: bytes) -> Predictions | None:
        value = self._entries.get(key)
        if value is None:
            return None
        self._entries.move_to_end(key)
        middle = len(value) // 2
        return Predictions(struct.unpack(f"<{middle // 4}I", value[:middle]), value[middle:])

    def _keep(self, key: bytes, outcome: Predictions) -> None:
        value = struct.pack(f"<{len(outcome.index)}I", *outcome.index) + outcome.float32
        if cost(key, value) > self.max_bytes:
            return
        before = self._entries.pop(key, None)
        if before is not None:
            self.bytes -= cost(key, before)
        self._entries[key] = value
        self.bytes += cost(key, value)
        while self.bytes > self.max_bytes:
            self.bytes -= cost(*self._entries.popitem(last=False))
            self._evictions.inc()

    def _count(self, model: str, context: RequestContext, images: int, misses: int) -> None:
        """Count images, and say in the answer's X-Cache whether they had to be computed."""
        hits = images - misses
        self._hits.labels(model).inc(hits)
        self._misses.labels(model).inc(misses)
        if images:
            context.notes["cache"] = "PARTIAL" if hits and misses else "HIT" if hits else "MISS"


def cost(key: bytes, value: bytes) -> int:
    """Bytes that an entry takes, about: its two strings as they are allocated, and its share of the table."""
    return ENTRY_BYTES + sum(-(-sys.getsizeof(each) // 16) * 16 for each in (key, value))


async def _wait_for(flight: Flight, requester: Requester) -> Predictions | None:
    """The answer that another request computes, unless this request's client leaves before."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    flight.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
    await requester.wait(waiter)
    return flight.result()


def _refusal(image: CheckedImage) -> Outcome:
    """The error that stands in the place of an image."""
    assert not isinstance(image, tuple)
    return image


def _directives(headers: dict[bytes, bytes]) -> frozenset[bytes]:
    text = headers.get(b"cache-control")
    return frozenset(part.strip().lower() for part in text.split(b",")) if text else frozenset()
