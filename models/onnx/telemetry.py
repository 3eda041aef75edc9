"""Keeps the runtimes from telling their makers what is run: ONNX Runtime, OpenVINO and NNCF do so unless prevented."""

import os
import sys


def without_telemetry() -> None:
    """Switch their telemetry off in this process and those that it starts. It must run before they are imported.

    ONNX Runtime writes an identifier into the user's home and uploads what it runs, unless a variable forbids it.
    OpenVINO and NNCF import a package for it, and do without where that cannot be imported.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
