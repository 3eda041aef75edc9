"""What a fuzzer's case found, and bytes that are nearly right: the parts that all targets share."""

import random
from collections.abc import Callable, Sequence

Target = Callable[[random.Random], None]
"""One case: all that it does follows from the numbers it draws, and it raises only where something is wrong."""

# Lengths, signs, quotes and ends of the formats that are mutated.
TOKENS = (
    *(b"\0", b"\xff", b"\x7f", b"\x80", b"\r\n", b"--", b'"', b"{", b"[", b"]", b"}", b",", b":", b"\\", b"null"),
    *(b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), b"\1\0\0\0", b"e999", b"-1", b"1e400", b"true"),
    *(b"\\u0000", b"\xed\xa0\x80", b"9" * 30),
)


class Finding(AssertionError):
    """Something that must not be. `data`: the input, as bytes to be looked at."""

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(message)
        self.data = data


def attempt(call: Callable[[], object], data: bytes, *refusals: type[Exception]) -> bool:
    """Call, and say whether it was taken; a refusal may be of these types alone.

    Raises:
        Finding: it ended in an exception of another type.
    """
    try:
        call()
    except refusals:
        return False
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}", data) from error
    return True


def mutated(draw: random.Random, data: bytes, changes: int = 0) -> bytes:
    """The bytes with some changes: a byte, a token, a piece less, a piece twice, a piece from elsewhere, the end off.

    Most are near the beginning, where headers are. `changes`: 0 = one to eight.
    """
    found = bytearray(data)
    for _ in range(changes or draw.choice((1, 1, 2, 4, 8))):
        place = draw.randrange(min(len(found), draw.choice((32, 128, 600, len(found)))) + 1)
        kind = draw.randrange(10)
        if kind < 3:
            found[place : place + 1] = bytes([draw.randrange(256)])
        elif kind < 6:
            token = draw.choice(TOKENS)
            found[place : place + draw.choice((0, len(token)))] = token
        elif kind < 7:
            del found[place : place + draw.randrange(1, 20)]
        elif kind < 9:
            start = draw.choice((place, draw.randrange(len(found) + 1)))
            found[place:place] = found[start : start + draw.randrange(1, 100)]
        else:
            del found[place + 1 :]
    return bytes(found) or b"x"


def one_of(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, mutated."""
    return mutated(draw, draw.choice(seeds))
