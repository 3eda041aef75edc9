"""Reads published checkpoints of every usual container, running nothing in them, and imports them as bundles.

A path or name becomes weights and what is known of them (`checkpoint`), these become a model (`fitting`), and that a
bundle (`bundle_import`).
"""

from .bundle_import import ImportReport as ImportReport
from .bundle_import import import_checkpoint as import_checkpoint
from .checkpoint import CheckpointInfo as CheckpointInfo
from .checkpoint import read_checkpoint as read_checkpoint
