"""Damaged coded data: what a whole decode refuses, what our quick check refuses, and what DALI alone answers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...loaders import InputError, validate
from ...loaders.decode.turbo import check_jpeg, decode_jpeg
from ..machine import quiet_stderr
from ..turns import in_turns
from .methods import dali, made, one_by_one

START_OF_SCAN = b"\xff\xda"
CHUNK = 8  # bodies of one batch: DALI decodes a batch or nothing

KINDS: dict[str, Callable[[np.random.Generator, bytes], bytes]] = {
    "one bit": lambda rng, old: bytes([old[0] ^ 1 << int(rng.integers(8))]),
    "one byte": lambda rng, old: rng.bytes(1),
    "16 random bytes": lambda rng, old: rng.bytes(16),
    "64 zeros": lambda rng, old: bytes(64),
}
"""What is written over the coded data at one place, by the kind of damage."""

READS: dict[str, Callable[[bytes], object]] = {
    "decode": lambda body: decode_jpeg(body, validate(body)),
    "check": lambda body: check_jpeg(body, validate(body)),
}


def damaged(bodies: Sequence[bytes], kind: str, seed: int = 0) -> list[bytes]:
    """Each body with the same length, damaged once at a place behind the head of its scan."""
    rng = np.random.default_rng([seed, *kind.encode()])
    out = []
    for body in bodies:
        scan = body.rindex(START_OF_SCAN)
        first = scan + 2 + int.from_bytes(body[scan + 2 : scan + 4], "big")
        at = int(rng.integers(first, len(body) - 66))
        new = KINDS[kind](rng, body[at:])
        out.append(body[:at] + new + body[at + len(new) :])
    return out


def damage(bodies: Sequence[bytes], rounds: int) -> dict[str, Any]:
    """A row for each kind, with each photograph damaged once.

    `decode_refused` counts bodies that the header guard or a whole decode refuses, as the `cpu` loader does;
    `check_refused` those that the guard or the check refuses, which reads all coded data at an eighth of the size;
    `agreed` those of which both say the same; `dali_refused` those that DALI refuses without the check, None where DALI
    is not here. CPU milliseconds are those of an undamaged photograph, in the best round.
    """
    spent = in_turns({name: partial(one_by_one, read, bodies) for name, read in READS.items()}, rounds, warm_up=0)
    ms = {f"{name}_cpu_ms": round(min(cpu for _, cpu in spent[name]) / len(bodies), 3) for name in READS}
    lenient = made({"dali": lambda: dali("exact", strict=False)})[0].get("dali")
    rows = []
    with quiet_stderr():
        for kind in KINDS:
            bad = damaged(bodies, kind)
            decode, check = ([_refuses(read, body) for body in bad] for read in READS.values())
            chunks = [bad[start : start + CHUNK] for start in range(0, len(bad), CHUNK)]
            rows.append(
                {
                    "kind": kind,
                    "images": len(bad),
                    "decode_refused": sum(decode),
                    "check_refused": sum(check),
                    "agreed": sum(one == other for one, other in zip(decode, check, strict=True)),
                    "dali_refused": sum(len(lenient.load(chunk).errors) for chunk in chunks) if lenient else None,
                    **ms,
                }
            )
    if lenient:
        lenient.close()
    return {"damage": rows}


def _refuses(read: Callable[[bytes], object], body: bytes) -> bool:
    try:
        read(body)
    except InputError:
        return True
    return False
