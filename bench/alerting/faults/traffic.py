"""Requests while something is done to a server: a few at a time, so many a second, for so long, and no more."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from PIL import Image

from ...load.endpoints import target_of
from ...load.plan import Plan, Shot
from ...load.processes import Clients
from ...serving.bodies import array_bodies, pictures, shots
from ...serving.bundles import TINY_SIZE

RATE, CONNECTIONS, PATIENCE_SECONDS = 10.0, 4, 60.0
"""Of what every server on trial gets. A server that hangs holds CONNECTIONS requests; those that find none free are
not sent."""

Headers = tuple[tuple[str, str], ...]


def plan(
    url: str,
    *,
    seconds: float,
    rate: float = RATE,
    connections: int = CONNECTIONS,
    timeout_seconds: float = PATIENCE_SECONDS,
    headers: Headers = (),
    images: str = "NPY",
) -> Plan:
    """Single small images for one server.

    Args:
        seconds: at most.
        rate: requests a second, evenly; 0: each connection sends its next request when it has its answer.
        timeout_seconds: after which a client gives up.
        images: NPY, or a format of Pillow's.
    """
    made = pictures(TINY_SIZE)
    return Plan(
        targets=(target_of(url),),
        path="/classify",
        shots=shots("npy", array_bodies(made)) if images == "NPY" else _coded(made, images),
        seconds=seconds,
        rate=rate,
        arrivals="fixed",
        connections=connections,
        timeout_seconds=timeout_seconds,
        headers=headers,
    )


def _coded(made: Sequence[np.ndarray], images: str) -> tuple[Shot, ...]:
    """One request each."""
    shots = []
    for picture in made:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, images)
        shots.append(Shot(out.getvalue(), f"image/{images.lower()}"))
    return tuple(shots)


@contextmanager
def traffic(wanted: Plan) -> Iterator[Callable[[], Counter[str]]]:
    """Send from a process of its own; what is yielded ends it and says how often there was which outcome."""
    with Clients(wanted) as clients:
        clients.begin()

        def end() -> Counter[str]:
            clients.stop()
            return clients.results().counts()

        yield end
