"""The C++ sources of the CPU kernels, the options that they are compiled with, and the hash of both."""

import functools
import hashlib
from pathlib import Path

from .instruction_sets import SETS

SOURCES = Path(__file__).parent / "csrc"
RESIZE = Path(__file__).parents[1] / "images" / "resize.h"

# Vectors of 16 floats are an ABI of their own only between files.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")


@functools.cache
def source_hash() -> str:
    """Return the hash of all that the library is made of."""
    digest = hashlib.sha256(repr((OPTIONS, sorted((each.name, flags) for each, (_, flags) in SETS.items()))).encode())
    for path in (*sorted(SOURCES.iterdir()), RESIZE):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
