"""Keeps ONNX Runtime from telling its makers what is run, as it does unless prevented."""

import os


def without_telemetry() -> None:
    """Switch its telemetry off in this process and those that it starts. It must run before the package is imported.

    ONNX Runtime writes an identifier into the user's home and uploads what it runs, unless a variable forbids it.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
