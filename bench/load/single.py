"""One request at a time, on a connection of its own: to learn the right answer, and when a server is itself again."""

import asyncio
import re
import time
from dataclasses import replace

from .connection import Answer, ConnectionFailed, connect
from .plan import Plan, Shot

RETRY_SECONDS = 0.05


def learned(plan: Plan) -> Plan:
    """The plan with the answer that each good shot gets from a server at rest, for comparison under load.

    Raises:
        RuntimeError: a good request is not answered with 200, or its answer has not what it is told by.
    """
    shots = tuple(replace(shot, expected=_expected(plan, shot)) if shot.good else shot for shot in plan.shots)
    return replace(plan, shots=shots)


def recovery_seconds(plan: Plan, least_in_a_row: int, most_seconds: float) -> float | None:
    """How long it takes until so many lone requests in a row are answered with 200; None if longer than `most`."""
    begin, in_a_row = time.monotonic(), 0
    shot = next(shot for shot in plan.shots if shot.good)
    while (passed := time.monotonic() - begin) < most_seconds:
        if in_a_row == least_in_a_row:
            return round(passed, 2)
        try:
            answered = asyncio.run(_post(plan, shot)).status == "200"
        except (ConnectionFailed, TimeoutError):
            answered = False
        in_a_row = in_a_row + 1 if answered else 0
        if not answered:
            time.sleep(RETRY_SECONDS)
    return None


def _expected(plan: Plan, shot: Shot) -> bytes:
    answer = asyncio.run(_post(plan, shot))
    found = re.search(plan.answer, answer.body, re.DOTALL)
    if answer.status != "200" or found is None:
        raise RuntimeError(f"a good request of {len(shot.body)} bytes got {answer.status}: {answer.body[:300]!r}")
    return found[1] if plan.answer else b""


async def _post(plan: Plan, shot: Shot) -> Answer:
    connection = await connect(*plan.targets[0], plan.timeout_seconds)
    try:
        return await connection.post(shot.wire(plan.targets[0], plan.path, plan.headers), plan.timeout_seconds)
    finally:
        connection.close()
