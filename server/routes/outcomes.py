"""The metric's word for how an image, or the request it was in, ended."""

import asyncio

from ..errors import ClientGone
from ..outcome import Predictions

_WORDS = {"internal": "error", "overloaded": "rejected", "draining": "rejected", "deadline": "expired"}


def word_for(outcome: object) -> str:
    """One of `metrics.OUTCOMES`."""
    if isinstance(outcome, Predictions):
        return "ok"
    if isinstance(outcome, ClientGone):
        return "cancelled"
    if isinstance(outcome, TimeoutError | asyncio.CancelledError):
        return "expired"
    return _WORDS.get(getattr(outcome, "code", "internal"), "invalid")
