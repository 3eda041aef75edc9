"""Opens a file of what was measured on this machine, kept from one start to the next beside what the tuner keeps."""

from pathlib import Path

from ..kernels.tuning.cache import TuningCache, user_folder


def measurements(name: str, folder: str, limit: int) -> TuningCache:
    """Open a file, which need not exist.

    Args:
        folder: "auto" is the one in the user's cache; without a home folder nothing is kept.
        limit: entries that are kept, those that were written last.
    """
    place = user_folder() if folder == "auto" else Path(folder)
    return TuningCache(None if place is None else place / name, limit=limit)
