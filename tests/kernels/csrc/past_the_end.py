"""Not collected by itself: reads one word past the emulated shared memory, which AddressSanitizer must notice."""

import ctypes
from collections.abc import Callable


def test_past(emulated: Callable[[str], ctypes.CDLL]) -> None:
    emulated("primitives").mw_past_the_end()
