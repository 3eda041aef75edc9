"""ModelLeases: which models requests use at the moment."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ModelLeases:
    """Counts the requests that use each model, by its key. Belongs to the event loop.

    Args:
        released: called with a key when the last request that used it is over.
    """

    def __init__(self, released: Callable[[str], None]) -> None:
        self._requests: Counter[str] = Counter()
        self._released = released

    def __contains__(self, key: str) -> bool:
        return key in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    @contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Within, one more request uses the model."""
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._released(key)
