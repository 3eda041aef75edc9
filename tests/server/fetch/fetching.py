"""One fetch for tests: its outcome, and what its request held of the budget."""

from milkweed.server.errors import ServiceError
from milkweed.server.fetch.fetcher import Fetcher, fetch_failed
from milkweed.server.http.body_budget import BodyBudget

LIMIT = 100_000
BODY = bytes(range(256)) * 300


class Fetched:
    """The outcome of one fetch, and what its request held of the budget after it."""

    def __init__(self, outcome: bytes | ServiceError, held: int) -> None:
        self.outcome, self.held = outcome, held

    @property
    def failed(self) -> bool:
        """Whether it is the one error that tells nothing, with nothing held."""
        told = isinstance(self.outcome, ServiceError) and (self.outcome.code, self.outcome.message)
        return told == ("fetch_failed", fetch_failed(LIMIT).message) and self.held == 0


async def fetch(fetcher: Fetcher, url: str, budget: BodyBudget | None = None) -> Fetched:
    budget = budget or BodyBudget(1 << 30)
    target = fetcher.target_of(url)
    assert target is not None
    try:
        with budget.lease() as lease:
            outcome = await fetcher.fetch(target, LIMIT, lease)
            held = budget.total
        assert budget.total == 0
        return Fetched(outcome, held)
    finally:
        fetcher.close()
