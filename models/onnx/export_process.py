"""`python -m milkweed.models.onnx.export_process BUNDLE FILE`: exports a bundle as ONNX in a process of its own.

A server starts it while it loads a model: PyTorch's exporter replaces functions of torch while it records, which the
models that serve meanwhile must not meet; it takes seconds of Python, and leaves 100 MB behind.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .export import export_bundle


def main(arguments: Sequence[str]) -> int:
    """Export; print `version` and `weight_bytes` as one JSON object, or what went wrong as a line on stderr.

    Args:
        arguments: the bundle, and the file to write.
    """
    bundle, file = map(Path, arguments)
    try:
        report = export_bundle(bundle, file)
    except (ValueError, OSError, ImportError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    print(json.dumps({"version": report.config.version, "weight_bytes": report.weight_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
