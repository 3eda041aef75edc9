"""Gives memory that was freed back to the operating system."""

import ctypes


def trim_heap() -> None:
    """Return freed memory to the system where the C library would keep it for itself."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library, which has no such call
