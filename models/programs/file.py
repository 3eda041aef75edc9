"""Programs in a file of a bundle: a server computes them without torch, and without building their model.

The file is a safetensors file of the program's arrays and of one more, STRUCTURE: JSON that says where each belongs.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.program import (
    Attention,
    Branch,
    Convolution,
    Embed,
    Factor,
    Grid,
    Head,
    Merge,
    Norm,
    Performer,
    Pixels,
    Pyramid,
)
from ...kernels.cpu.program import Program as Program
from ..bundle.config import BundleConfig
from ..bundle.program_record import ACTIVATIONS, OPERATORS, read_activations
from ..bundle.reading import about, check_digest, naming, read_unnamed
from ..bundle.safetensors_file import read_arrays
from ..bundle.strict_json import parse_json
from ..errors import BundleError, quoted
from .check import check
from .compact import compact, expanded, is_int8, rounded

STRUCTURE = "structure"

CLASSES = {
    cls.__name__: cls
    for cls in (Attention, Branch, Convolution, Embed, Factor, Grid, Head, Merge, Norm, Performer, Pixels)
} | {cls.__name__: cls for cls in (Program, Pyramid)}
"""What a program is made of, by name."""

_KIND, _ARRAY = "kind", "array"
_NARROW = {"float64": np.float32, "int64": np.int32}

Arrays = dict[str, NDArray[Any]]


def stored(program: Program, *, int8: bool) -> bytes:
    """The content of the file of a program of floats, which is to be computed in int8 or in bfloat16."""
    import torch  # it is here where models are made, and NumPy has no bfloat16
    from safetensors.torch import save

    arrays: Arrays = {}
    structure = json.dumps(_plain(compact(program, int8=int8), arrays)).encode()
    arrays[STRUCTURE] = np.frombuffer(structure, np.uint8).copy()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return save({name: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for name, t in tensors.items()})


def load_operators(path: str | Path, config: BundleConfig | None = None) -> tuple[Program, BundleConfig]:
    """Read the program of a bundle, rounded for this CPU, and the config. No weights are read, nothing needs torch.

    Args:
        config: as in `load_bundle`.

    Raises:
        BundleError: the file is missing, is not the one that was hashed, or holds no program of the config's model.
    """
    path = Path(path)
    with naming(path):
        config = config or read_unnamed(path)
        if config.program is None or OPERATORS not in config.files:
            raise BundleError(f"holds no program ({OPERATORS})")
        with about(OPERATORS):
            file = read_arrays(path / OPERATORS)
        check_digest(OPERATORS, file.sha256, config)
        with about(OPERATORS):
            program, int8 = _program(file.arrays)
            actual = (program.embed.size, program.head.classifier.width, int8)
            expected = (config.preprocess["size"], config.num_classes, config.program.precision == "int8")
            if actual != expected:
                raise BundleError(f"size, classes and int8 are {actual}, the config says {expected}")
        if int8:
            activations = read_activations(path, config.files[ACTIVATIONS])
            with about(ACTIVATIONS):
                program = rounded(program, activations)
    return program, config


def _plain(value: Any, arrays: Arrays) -> Any:
    """A part of a program as JSON; its arrays go to `arrays`."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value, _NARROW.get(value.dtype.name))
        return {_ARRAY: name}
    if is_dataclass(value):
        parts = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {_KIND: type(value).__name__, **parts}
    return [_plain(item, arrays) for item in value] if isinstance(value, list | tuple) else value


def _program(arrays: Arrays) -> tuple[Program, bool]:
    """The program of a file's arrays, in floats, and whether they are int8.

    Raises:
        ValueError: it is none, or its parts do not fit each other.
    """
    if STRUCTURE not in arrays:
        raise ValueError(f"holds no array {STRUCTURE!r}")
    try:
        program = _made(parse_json(arrays[STRUCTURE].tobytes()), arrays)
        if not isinstance(program, Program):
            raise ValueError(f"holds a {type(program).__name__}")
        int8, program = is_int8(program), expanded(program)
        check(program)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # A number's place may hold an array, whose text is long.
        kind = "" if isinstance(error, ValueError) else f"holds no program: {type(error).__name__}: "
        raise ValueError(kind + " ".join(str(error).split())[:200]) from None
    return program, int8


def _made(document: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(document, list):
        return [_made(item, arrays) for item in document]
    if not isinstance(document, dict):
        return document
    if set(document) == {_ARRAY}:
        array = arrays[document[_ARRAY]]
        return array.astype(np.int64) if array.dtype == np.int32 else array
    parts = dict(document)
    kind = CLASSES.get(parts.pop(_KIND, ""))
    if kind is None or set(parts) != {field.name for field in fields(kind)}:
        raise ValueError(f"{quoted(document, 60)} is no part of a program")
    return kind(**{name: _made(value, arrays) for name, value in parts.items()})
