"""Reads published checkpoints of every usual container, running nothing in them, and imports them as bundles.

`checkpoint` reads weights and what is known of them, `fitting` builds the model that takes them, and `bundle_import`
writes it as a bundle.
"""

from .bundle_import import ImportReport as ImportReport
from .bundle_import import import_checkpoint as import_checkpoint
from .checkpoint import CheckpointInfo as CheckpointInfo
from .checkpoint import read_checkpoint as read_checkpoint
