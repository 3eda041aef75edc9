"""Fuzzes bundles whose hashes are right: opened, or refused by a BundleError of one line."""

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from milkweed.inference.open import open_model
from milkweed.models import BundleError

from .finding import attempt, mutated

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
HEADED = ("activations.safetensors", "program.safetensors")
PARTS = ("arch_args", "preprocess", "program", "structure", "storage", "")
VALUES = (
    *(None, True, 0, 1, -1, 2, 3, 63, 65, 4096, 2**31, 2**63, 10**40, 0.5, 1e308, "", "x", "../../etc", "\0", "demo"),
    *([], {}, [1], [[1, 2]], ["performer"]),
)
MOST_CHARACTERS = 700


@cache
def files() -> dict[str, bytes]:
    """The demo's files, but its weights, which are linked."""
    return {path.name: path.read_bytes() for path in DEMO.iterdir() if path.name != WEIGHTS}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document."""
    if place:
        yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*place, key))


def change(draw: random.Random, config: dict[str, Any]) -> str:
    """Change a value of the config, or take it away; returns what was done."""
    part = draw.choice(PARTS)
    place = draw.choice([*places({part: config[part]} if part in config else config)])
    parent: Any = config
    for key in place[:-1]:
        parent = parent[key]
    old = parent[place[-1]]
    near = [old - 1, old + 1, old + 7, old * 2] if isinstance(old, int) and not isinstance(old, bool) else []
    if isinstance(parent, dict) and draw.random() < 0.25:
        del parent[place[-1]]
        return f"{place} gone"
    parent[place[-1]] = draw.choice([draw.choice(VALUES), *near])
    return f"{place} = {str(parent[place[-1]])[:60]}"


def damage(draw: random.Random, data: bytes, headed: bool) -> bytes:
    """Mutate a file; of a file of tensors mostly the header, whose length stays right."""
    if not headed or draw.random() < 0.2:
        return mutated(draw, data, 2)
    length = int.from_bytes(data[:8], "little")
    header = mutated(draw, data[8 : 8 + length], 1)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def bundles(draw: random.Random) -> None:
    made, config = dict(files()), json.loads(files()[CONFIG])
    done = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.6:
            done.append(change(draw, config))
        else:
            name = draw.choice(("labels.json", *HEADED))
            made[name] = damage(draw, made[name], name in HEADED)
            done.append(f"{name} damaged")
    hashes = config.get("files")
    for name in made.keys() & (hashes.keys() if isinstance(hashes, dict) else set()):
        hashes[name] = hashlib.sha256(made[name]).hexdigest()
    made[CONFIG] = json.dumps(config).encode()
    folder = Path(tempfile.mkdtemp(prefix="milkweed-fuzz-"))
    try:
        for name, data in made.items():
            (folder / name).write_bytes(data)
        (folder / WEIGHTS).symlink_to(DEMO / WEIGHTS)
        attempt(lambda: opened(folder), "; ".join(done).encode(), BundleError)
    finally:
        shutil.rmtree(folder)


def opened(folder: Path) -> None:
    """Open it; raises BundleError where it is refused, AssertionError where the refusal is more than a line."""
    try:
        open_model(folder).pipeline.close()
    except BundleError as error:
        if "\n" in str(error) or len(str(error)) > MOST_CHARACTERS:
            raise AssertionError(f"more than a line: {str(error)[:200]!r}") from error
        raise


TARGETS = {"bundles": bundles}
