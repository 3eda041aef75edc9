"""Files that are no programs, with right hashes: each is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milkweed.models.errors import BundleError
from milkweed.models.programs.file import load_operators, stored

from .program_bundles import written
from .test_hostile import attention, program


def head_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_head(data: bytes, change: Callable[[dict[str, Any]], str]) -> bytes:
    head, rest = head_of(data)
    text = change(head).encode()
    return len(text).to_bytes(8, "little") + text + rest


def moved(head: dict[str, Any]) -> str:
    head["0"]["data_offsets"] = [-4, 0]
    return json.dumps(head)


def longer(head: dict[str, Any]) -> str:
    head["0"]["shape"] = [1 << 40]
    return json.dumps(head)


MANGLED: dict[str, Callable[[bytes], bytes]] = {
    "cut in its head": lambda data: data[:100],
    "cut in its data": lambda data: data[:-1],
    "empty": lambda data: b"",
    "a head longer than the file": lambda data: (1 << 62).to_bytes(8, "little") + data[8:],
    "a name twice": lambda data: with_head(data, lambda head: json.dumps(head)[:-1] + ', "0": {}}'),
    "a negative offset": lambda data: with_head(data, moved),
    "a shape larger than its data": lambda data: with_head(data, longer),
    "no structure": lambda data: with_head(data, lambda head: json.dumps(head).replace("structure", "structurE")),
}


@pytest.mark.parametrize("case", MANGLED)
def test_a_file_that_is_no_program_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    made = program(attention())
    bundle = written(tmp_path / "b", MANGLED[case](stored(made)), made.embed.size)
    with pytest.raises(BundleError, match=r"^bundle \S+: program\.safetensors: [^\n]+$"):
        load_operators(bundle)
