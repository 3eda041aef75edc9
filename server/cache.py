"""Response cache: the answers to images that were asked about before, by the images' own bytes.

An entry is two strings of bytes, which the garbage collector need not walk: a keyed digest of the encoded image with
the number of classes and the model's instance, and the classes with their probabilities, bit for bit.
"""

import asyncio
import hashlib
import secrets
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence

from ..loaders.info import ImageInfo
from .metrics import Metrics
from .outcome import Predictions
from .settings import Settings
from .ticket import Ticket
from .trace import Trace

DIGEST_BYTES = 16

INLINE_BYTES = 1 << 20
"""Of a request; the digests of more (1 ms) are made on another thread, so that the event loop goes on."""

ENTRY_BYTES = 112
"""That the table itself takes for an entry, on average over its growth."""

Wanted = list[tuple[int, bytes, ImageInfo]]


class ResponseCache:
    """The least recently used answers go first. Belongs to the event loop.

    Args:
        max_bytes: of all entries, as estimated by `cost`.
    """

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._metrics = metrics
        self._secret = secrets.token_bytes(32)  # nobody can make two images of one digest, nor guess one
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._models: dict[str, bytes] = {}  # what stands for each instance in the keys
        self._made = 0
        metrics.cache_bytes.set_function(lambda: self.bytes)
        metrics.cache_entries.set_function(lambda: len(self._entries))

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> "ResponseCache | None":
        """As settings have it; None where it is off."""
        return cls(settings.cache_bytes, metrics) if settings.cache_bytes else None

    def __len__(self) -> int:
        return len(self._entries)

    async def answer(self, ticket: Ticket, wanted: Wanted, trace: Trace) -> Wanted:
        """Put what is known into a request's places; the images that are not, whose answers `learn` will keep.

        The digests count as parsing. A request that says `Cache-Control: no-cache` is answered anew, one that says
        `no-store` leaves nothing behind either; neither is counted.
        """
        said = _directives(trace.headers)
        if b"no-store" in said:
            trace.cache = b"MISS"
            return wanted
        if sum(len(data) for _, data, _ in wanted) > INLINE_BYTES:
            digests = await asyncio.to_thread(self._digests, wanted)
        else:
            digests = self._digests(wanted)
        tail = struct.pack("<I", ticket.top_k) + self._instance(ticket.model)
        keys = {place: digest + tail for (place, _, _), digest in zip(wanted, digests, strict=True)}
        if b"no-cache" in said:
            rest, trace.cache = wanted, b"MISS"
        else:
            rest = [each for each in wanted if not self._found(ticket, each[0], keys)]
            self._count(trace, len(wanted) - len(rest), len(rest))
        ticket.unknown = {place: keys[place] for place, _, _ in rest}
        trace.ends[-1:] = [time.perf_counter()]
        return rest

    def learn(self, ticket: Ticket) -> None:
        """Keep the answers of a request that were not known; errors are none."""
        for place, key in ticket.unknown.items():
            outcome = ticket.outcomes[place]
            if isinstance(outcome, Predictions):
                self._put(key, outcome)

    def forget_model(self, key: str) -> None:
        """Drop the answers of a model's instance, which will never be asked again."""
        instance = self._models.pop(key, None)
        if instance is None:
            return
        for entry in [entry for entry in self._entries if entry.endswith(instance)]:
            self.bytes -= cost(entry, self._entries.pop(entry))

    def _found(self, ticket: Ticket, place: int, keys: dict[int, bytes]) -> bool:
        value = self._entries.get(keys[place])
        if value is None:
            return False
        self._entries.move_to_end(keys[place])
        classes = len(value) // 12
        numbers = struct.unpack(f"<{classes}I{classes}d", value)
        ticket.outcomes[place] = Predictions(numbers[:classes], numbers[classes:])
        return True

    def _put(self, key: bytes, outcome: Predictions) -> None:
        classes = len(outcome.index)
        value = struct.pack(f"<{classes}I{classes}d", *outcome.index, *outcome.score)
        if cost(key, value) > self.max_bytes:
            return
        before = self._entries.pop(key, None)
        if before is not None:
            self.bytes -= cost(key, before)
        self._entries[key] = value
        self.bytes += cost(key, value)
        while self.bytes > self.max_bytes:
            self.bytes -= cost(*self._entries.popitem(last=False))
            self._metrics.cache_evictions.inc()

    def _digests(self, wanted: Sequence[tuple[int, bytes, ImageInfo]]) -> list[bytes]:
        secret = self._secret
        return [hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=secret).digest() for _, data, _ in wanted]

    def _instance(self, model: str) -> bytes:
        """What stands for a model's instance; never the same for two."""
        found = self._models.get(model)
        if found is None:
            self._made += 1
            found = self._models[model] = struct.pack("<I", self._made)
        return found

    def _count(self, trace: Trace, hits: int, misses: int) -> None:
        """In the metrics, and in the answer's X-Cache."""
        if hits:
            self._metrics.cache_hits.labels(trace.model_name).inc(hits)
        if misses:
            self._metrics.cache_misses.labels(trace.model_name).inc(misses)
        trace.cache = b"PARTIAL" if hits and misses else b"HIT" if hits else b"MISS"


def cost(key: bytes, value: bytes) -> int:
    """Bytes that an entry takes, about: its two strings as they are allocated, and its share of the table."""
    return ENTRY_BYTES + sum(-(-sys.getsizeof(each) // 16) * 16 for each in (key, value))


def _directives(headers: dict[bytes, bytes]) -> frozenset[bytes]:
    text = headers.get(b"cache-control")
    return frozenset(part.strip().lower() for part in text.split(b",")) if text else frozenset()
