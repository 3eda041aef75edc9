"""TorchServe: the raw body, a handler of its own; packed into an archive with the modules of the model."""

from typing import Any

from served_model import MODEL, classify, decode, load

_state: dict[str, Any] = {}


def handle(data: Any, context: Any) -> Any:
    """Best class of each body of a batch; called once with no data to load the model."""
    if "model" not in _state:
        _state["model"] = load(MODEL)
    if data is None:
        return None
    bodies = [bytes(row.get("body") or row.get("data")) for row in data]
    classes = classify(_state["model"], [decode(body) for body in bodies])
    return [{"class": index, "score": score} for index, score in classes]
