"""The graph of a bundle in OpenVINO, on all cores, and the bundle's preprocessing of encoded photographs, by Pillow."""

import functools
import io
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from PIL import Image, ImageOps

BODY, SHAPE = bytes, (1,)  # of a request, for who declares it

_cores = len(os.sched_getaffinity(0))
_pool = ThreadPoolExecutor(_cores)  # Pillow decodes without the interpreter's lock


def load(path: str | Path) -> Any:
    """The compiled graph of a bundle; kept in the folder PEER_CACHE, if there is one, as our server keeps its own."""
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": _cores, "ENABLE_CPU_PINNING": False}
    if "PEER_CACHE" in os.environ:
        options["CACHE_DIR"] = os.environ["PEER_CACHE"]
    return openvino.Core().compile_model(Path(path) / "graph.onnx", "CPU", options)


def decode(body: bytes) -> "Future[np.ndarray]":
    """Begin to make the model's input of an encoded photograph; what is wrong with it is raised by the result."""
    return _pool.submit(pixels, body, **_preprocess())


@functools.cache
def _preprocess() -> dict[str, Any]:
    return json.loads((Path(os.environ["PEER_MODEL"]) / "config.json").read_text())["preprocess"]


def pixels(
    body: bytes,
    *,
    size: int,
    crop_pct: float,
    interpolation: str,
    mean: Sequence[float],
    std: Sequence[float],
    orientation: str = "apply",
    crop_mode: str = "center",
    jpeg_scaling: str = "exact",
) -> np.ndarray:
    """The model's input, float32 (3, size, size): short side resized, centre cut out, normalised.

    Raises:
        OSError: no image that Pillow can decode.
        ValueError: a `crop_mode` or `jpeg_scaling` that is not computed here.
    """
    if (crop_mode, jpeg_scaling) != ("center", "exact"):
        raise ValueError(f"crop_mode {crop_mode!r}, jpeg_scaling {jpeg_scaling!r}: must be center and exact")
    image: Image.Image = Image.open(io.BytesIO(body))
    image = (ImageOps.exif_transpose(image) if orientation == "apply" else image).convert("RGB")
    short, least = math.floor(size / crop_pct), min(image.size)
    resized = [int(short * side / least) for side in image.size]
    image = image.resize((resized[0], resized[1]), Image.Resampling[interpolation.upper()])
    # Half a pixel goes as torchvision has it: to even, of padding down.
    left, top = (-((size - side) // 2) if size > side else round((side - size) / 2) for side in resized)
    levels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32)
    return ((levels / 255 - np.array(mean, np.float32)) / np.array(std, np.float32)).transpose(2, 0, 1)


def classify(model: Any, images: "Sequence[Future[np.ndarray]]") -> list[tuple[int, float]]:
    """Best class and its score, for each image, all in one forward."""
    logits = model(np.stack([image.result() for image in images]))[0]
    scores = 1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)
    return list(zip(logits.argmax(-1).tolist(), scores.tolist(), strict=True))
