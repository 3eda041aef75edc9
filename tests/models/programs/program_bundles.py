"""Bundles around the bytes of a program, which may be anything, with right hashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from milkweed.models.programs.file import load_operators
from milkweed.models.programs.session import ProgramSession

CLASSES = 10
PREPROCESS = {"crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


def written(folder: Path, operators: bytes, size: int) -> Path:
    """A bundle with these bytes as its program, and right hashes."""
    labels = json.dumps([{"id": str(i), "label": f"class {i}"} for i in range(CLASSES)]).encode()
    files = {"labels.json": labels, "model.safetensors": b"\2" + bytes(7) + b"{}", "program.safetensors": operators}
    golden = {"index": [[0], [0]], "probability": [[0.5], [0.5]]}
    config = {
        "format": 1,
        "arch": "deit_tiny_patch16_224",
        "arch_args": {"num_classes": CLASSES},
        "structure": {},
        "preprocess": {"size": size, **PREPROCESS},
        "provenance": {},
        "metrics": {},
        "program": {"precision": "bfloat16", "golden": golden, "counts": {"macs": 1000, "dense_values": 1000}},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    folder.mkdir()
    for name, data in {**files, "config.json": json.dumps(config).encode()}.items():
        (folder / name).write_bytes(data)
    return folder


def answers(bundle: Path) -> Any:
    made, _ = load_operators(bundle)
    size = made.embed.size
    return ProgramSession(made)(np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32))
