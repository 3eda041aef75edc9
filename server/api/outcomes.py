"""The metric's word for how an image, or the request it was in, ended."""

import asyncio

from ...inference.results import Predictions
from ..errors import ClientDisconnected

_WORDS = {"internal": "error", "overloaded": "rejected", "draining": "rejected", "deadline": "expired"}


def outcome_label(outcome: object) -> str:
    """One of `metrics.OUTCOMES`."""
    if isinstance(outcome, Predictions):
        return "ok"
    if isinstance(outcome, ClientDisconnected):
        return "cancelled"
    if isinstance(outcome, TimeoutError | asyncio.CancelledError):
        return "expired"
    return _WORDS.get(getattr(outcome, "code", "internal"), "invalid")
