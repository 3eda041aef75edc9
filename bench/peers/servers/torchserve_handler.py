"""TorchServe: the raw body, a handler of its own; packed into an archive with the weights and `tiny_vit.py`."""

from pathlib import Path
from typing import Any

import torch
from tiny_vit import classify, decode, load

_state: dict[str, Any] = {}


def handle(data: Any, context: Any) -> Any:
    """Best class of each body of a batch; called once with no data to load the model."""
    if "model" not in _state:
        _state["model"] = load(Path(context.system_properties["model_dir"]) / "tiny.pt")
    if data is None:
        return None
    bodies = [bytes(row.get("body") or row.get("data")) for row in data]
    found = classify(_state["model"], torch.stack([decode(body) for body in bodies]))
    return [{"class": index, "score": score} for index, score in found]
