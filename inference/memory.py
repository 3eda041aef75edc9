"""Memory that was freed and that the C library keeps."""

import ctypes


def trim_heap() -> None:
    """Give freed memory back to the system, where the C library would keep it."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library: it keeps what it likes
