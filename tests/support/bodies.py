"""Images as bodies of requests, and how many bytes of bodies a server held."""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np


def files(*images: bytes) -> list[tuple[str, tuple[str, bytes, str]]]:
    """A multipart form of /classify."""
    return [("image", (f"{i}.png", image, "image/png")) for i, image in enumerate(images)]


def npy(array: "np.ndarray[Any, Any]") -> bytes:
    """An array as a file of numpy."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def as_json(*images: bytes) -> dict[str, list[str]]:
    """The JSON of /classify."""
    return {"images": [base64.b64encode(image).decode() for image in images]}


def as_tensor(*images: bytes) -> dict[str, Any]:
    """The JSON of /v2/models/NAME/infer."""
    data = as_json(*images)["images"]
    return {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [len(images)], "data": data}]}


def most_held(app: Any) -> Callable[[], int]:
    """Watch the bytes that an app counts as held; the function returned says how many there were at most since."""
    budget, most = app.service.body_budget, 0
    add = budget.add

    def watched(count: int) -> None:
        nonlocal most
        add(count)
        most = max(most, budget.total)

    budget.add = watched
    return lambda: most
