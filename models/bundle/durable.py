"""What a file system can do beyond reading and writing: outlast a power cut, let two paths change places at once."""

import ctypes
import os
import sys
from pathlib import Path

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h> and <linux/fs.h>


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places, so that each is there at any time; False, and nothing done, where that cannot be.

    Only Linux can, and not on every file system: NFS cannot.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    return rename is not None and rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
