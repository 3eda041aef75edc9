"""Which models requests have in hand."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ModelLeases:
    """By a model's key. Belongs to the event loop.

    Args:
        last: called with a key when the last request that had it has gone.
    """

    def __init__(self, last: Callable[[str], None]) -> None:
        self._requests: Counter[str] = Counter()
        self._last = last

    def __contains__(self, key: str) -> bool:
        return key in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Within, one more request has it."""
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._last(key)
