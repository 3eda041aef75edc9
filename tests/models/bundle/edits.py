"""Changes the files of a saved bundle, and asks that loading it is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from milkweed.models import load_bundle
from milkweed.models.errors import BundleError

Change = Callable[[dict[str, Any]], object]


def refuse(path: Path, *parts: str, load: Callable[[Path], object] = load_bundle) -> None:
    """Loading the bundle is refused by one line that names it and has these parts."""
    with pytest.raises(BundleError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"bundle {path}: ")
    assert "\n" not in message
    assert len(message) < 600 + len(str(path))
    assert all(part in message for part in parts), message


def edit_config(bundle: Path, change: Change) -> None:
    document = json.loads((bundle / "config.json").read_text())
    change(document)
    (bundle / "config.json").write_text(json.dumps(document))


def rehash(bundle: Path) -> None:
    """Write the hashes of the changed files, so that the checks behind the hashes are reached."""
    names = ("model.safetensors", "labels.json")
    digests = {name: hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in names}
    edit_config(bundle, lambda document: document["files"].update(digests))


def edit_tensors(bundle: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(bundle / "model.safetensors")
    change(tensors)
    save_file(tensors, bundle / "model.safetensors")
    rehash(bundle)
