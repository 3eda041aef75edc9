"""Damaged coded data: what a whole decode refuses, what our quick check refuses, and what DALI alone answers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...loaders import InputError, Loader, inspect
from ...loaders.turbo import check_jpeg, decode_jpeg

START_OF_SCAN = b"\xff\xda"
CHUNK = 8
"""Bodies of one batch: DALI decodes a batch or nothing."""

Change = Callable[[np.random.Generator, bytearray, int], None]
"""Damages a body at a place."""


@dataclass(frozen=True)
class Damage:
    """One kind of damage, once to each photograph.

    Args:
        images: photographs.
        decode_refused: by the header guard or a whole decode: what the `cpu` loader refuses.
        check_refused: by the header guard or the check that reads all coded data at an eighth of the size.
        agreed: images of which both say the same.
        dali_refused: by DALI without the check; None where DALI is not here.
        decode_cpu_ms, check_cpu_ms: of one undamaged photograph, best of the rounds.
    """

    kind: str
    images: int
    decode_refused: int
    check_refused: int
    agreed: int
    dali_refused: int | None
    decode_cpu_ms: float
    check_cpu_ms: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def _bit(rng: np.random.Generator, body: bytearray, at: int) -> None:
    body[at] ^= 1 << int(rng.integers(8))


def _bytes(count: int) -> Change:
    def change(rng: np.random.Generator, body: bytearray, at: int) -> None:
        body[at : at + count] = rng.bytes(count)

    return change


def _zeros(rng: np.random.Generator, body: bytearray, at: int) -> None:
    body[at : at + 64] = bytes(64)


KINDS: dict[str, Change] = {"one bit": _bit, "one byte": _bytes(1), "16 random bytes": _bytes(16), "64 zeros": _zeros}


def damaged(bodies: Sequence[bytes], kind: str, seed: int = 0) -> list[bytes]:
    """Each body of the same length, damaged once at a place behind the head of its scan."""
    rng = np.random.default_rng([seed, *kind.encode()])
    out = []
    for body in bodies:
        scan = body.rindex(START_OF_SCAN)
        first = scan + 2 + int.from_bytes(body[scan + 2 : scan + 4], "big")
        changed = bytearray(body)
        KINDS[kind](rng, changed, int(rng.integers(first, len(body) - 66)))
        out.append(bytes(changed))
    return out


def damage_rows(bodies: Sequence[bytes], rounds: int, dali: Loader | None) -> list[Damage]:
    """A row a kind.

    Args:
        dali: a loader that leaves the check out.
    """
    decode_ms, check_ms = _cpu_ms(_decode, bodies, rounds), _cpu_ms(_check, bodies, rounds)
    rows = []
    for kind in KINDS:
        bad = damaged(bodies, kind)
        decode, check = [_refuses(_decode, body) for body in bad], [_refuses(_check, body) for body in bad]
        rows.append(
            Damage(
                kind,
                len(bad),
                sum(decode),
                sum(check),
                sum(one == other for one, other in zip(decode, check, strict=True)),
                None if dali is None else _refused_by(dali, bad),
                decode_ms,
                check_ms,
            )
        )
    return rows


def _decode(body: bytes) -> None:
    decode_jpeg(body, inspect(body))


def _check(body: bytes) -> None:
    check_jpeg(body, inspect(body))


def _refuses(read: Callable[[bytes], None], body: bytes) -> bool:
    try:
        read(body)
    except InputError:
        return True
    return False


def _refused_by(loader: Loader, bodies: Sequence[bytes]) -> int:
    chunks = (bodies[start : start + CHUNK] for start in range(0, len(bodies), CHUNK))
    return sum(len(loader.load(chunk).errors) for chunk in chunks)


def _cpu_ms(read: Callable[[bytes], None], bodies: Sequence[bytes], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for body in bodies:
            read(body)
        found.append(time.process_time() - began)
    return round(min(found) / len(bodies) * 1e3, 3)
