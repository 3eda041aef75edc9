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

from ...kernels.cpu.program import Attention, Embed, Factor, Head, Merge, Norm, Quantiser
from ...kernels.cpu.program import Program as Program
from ..bundle.config import BundleConfig
from ..bundle.program_record import OPERATORS
from ..bundle.reading import about, check_digest, naming, read_unnamed
from ..bundle.safetensors_file import read_arrays
from ..bundle.strict_json import parse_json
from ..errors import BundleError, quoted

STRUCTURE = "structure"

CLASSES = {each.__name__: each for each in (Attention, Embed, Factor, Head, Merge, Norm, Program, Quantiser)}
"""What a program is made of, by name."""

_KIND, _ARRAY = "kind", "array"
_MOST = 1 << 24
"""No number of channels, tokens or heads is larger."""

Arrays = dict[str, NDArray[Any]]


def stored(program: Program) -> bytes:
    """The content of the file of a program."""
    from safetensors.numpy import save

    arrays: Arrays = {}
    structure = json.dumps(_plain(program, arrays)).encode()
    return save({**arrays, STRUCTURE: np.frombuffer(structure, np.uint8)})


def load_operators(path: str | Path) -> tuple[Program, BundleConfig]:
    """Read the program of a bundle, and its config. No weights are read, and nothing of torch is built.

    Raises:
        BundleError: the file is missing, is not the one that was hashed, or holds no program of the config's model.
    """
    path = Path(path)
    with naming(path):
        config = read_unnamed(path)
        if config.program is None or OPERATORS not in config.files:
            raise BundleError(f"holds no program ({OPERATORS})")
        with about(OPERATORS):
            file = read_arrays(path / OPERATORS)
        check_digest(OPERATORS, file.sha256, config)
        with about(OPERATORS):
            program = _program(file.arrays)
            found = (program.embed.size, program.head.classifier.width, is_quantised(program))
            wanted = (config.preprocess["size"], config.num_classes, config.program.precision == "int8")
            if found != wanted:
                raise BundleError(f"size, classes and int8 are {found}, the config says {wanted}")
    return program, config


def is_quantised(program: Program) -> bool:
    """Whether it computes in int8."""
    return any(isinstance(each, Factor) and each.quantiser is not None for each in program.operators)


def _plain(value: Any, arrays: Arrays) -> Any:
    """A part of a program as JSON; its arrays go to `arrays`."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value)
        return {_ARRAY: name}
    if is_dataclass(value):
        parts = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {_KIND: type(value).__name__, **parts}
    return [_plain(each, arrays) for each in value] if isinstance(value, list | tuple) else value


def _program(arrays: Arrays) -> Program:
    """The program of a file's arrays; raises ValueError where it is none, or its parts do not fit each other."""
    if STRUCTURE not in arrays:
        raise ValueError(f"holds no array {STRUCTURE!r}")
    try:
        program = _made(parse_json(arrays[STRUCTURE].tobytes()), arrays)
        if not isinstance(program, Program):
            raise ValueError(f"holds a {type(program).__name__}")
        _check(program)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"holds no program: {type(error).__name__}: {error}") from None
    return program


def _made(document: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(document, list):
        return [_made(each, arrays) for each in document]
    if not isinstance(document, dict):
        return document
    if set(document) == {_ARRAY}:
        return arrays[document[_ARRAY]]
    parts = dict(document)
    kind = CLASSES.get(parts.pop(_KIND, ""))
    if kind is None or set(parts) != {field.name for field in fields(kind)}:
        raise ValueError(f"{quoted(document, 60)} is no part of a program")
    return kind(**{name: _made(value, arrays) for name, value in parts.items()})


def _check(program: Program) -> None:
    """Refuse what would lead the kernels out of their memory: shapes and places that do not fit each other."""
    embed, width = program.embed, program.embed.start.shape[-1]
    _require(_is_float(embed.weight, embed.bias, embed.start), "embed: not of floats")
    patch = embed.weight.shape[-1]
    _require(embed.weight.shape == (width, 3, patch, patch) and 0 < patch <= embed.size, "embed: its weight's shape")
    tokens = embed.start.shape[0]
    patches = (embed.size // patch) ** 2
    _require(embed.bias.shape == (width,) and embed.start.ndim == 2 and tokens >= patches, "embed: its start's shape")
    channels, before = width, list[int]()
    for place, operator in enumerate([*program.operators, program.head.norm, program.head.classifier]):
        where = f"operator {place} ({type(operator).__name__})"
        if isinstance(operator, Norm):
            _require(operator.weight.shape == operator.bias.shape == (width,), f"{where}: not {width} channels")
            _require(_is_float(operator.weight, operator.bias) and operator.eps > 0, f"{where}: its numbers")
            channels = width
        elif isinstance(operator, Factor):
            _check_factor(operator, channels, where)
            channels = operator.width
            _require(not operator.adds or channels == width, f"{where}: adds {channels} channels to {width}")
        else:
            sizes = (operator.heads, operator.head_dim)
            _require(all(type(size) is int and 0 < size < _MOST for size in sizes), f"{where}: {sizes}")
            if isinstance(operator, Attention):
                _require(channels == 3 * operator.heads * operator.head_dim, f"{where}: of {channels} channels")
                channels, before = channels // 3, list(sizes)
            else:
                merges = 0 <= operator.prefix <= tokens and 0 <= 2 * operator.count < max(1, tokens - operator.prefix)
                _require(merges and before == list(sizes), f"{where}: merges {operator.count} of {tokens} tokens")
                tokens -= operator.count


def _check_factor(factor: Factor, channels: int, where: str) -> None:
    blocks, outs, ins = factor.weight.shape
    _require(factor.inputs.shape == (blocks, ins) and factor.outputs.shape == (blocks, outs), f"{where}: its places")
    for places, most in ((factor.inputs, max(channels, blocks * ins)), (factor.outputs, blocks * outs)):
        right = places.dtype.kind == "i" and places.min() >= 0 and places.max() < most
        _require(right and len(np.unique(places)) == places.size, f"{where}: a place outside 0..{most - 1} or twice")
    right = type(factor.width) is int and factor.width <= blocks * outs and factor.bias.shape == (factor.width,)
    _require(right and _is_float(factor.bias), f"{where}: its bias")
    if factor.quantiser is None:
        _require(factor.scale is None and _is_float(factor.weight), f"{where}: its weight is {factor.weight.dtype}")
        return
    scale, zero, worth = factor.quantiser.scale, factor.quantiser.zero, factor.scale
    right = worth is not None and worth.shape == (blocks, outs) and _is_float(worth) and factor.weight.dtype == np.int8
    _require(right and scale.shape == zero.shape == (channels,) and _is_float(scale, zero), f"{where}: its scales")


def _is_float(*arrays: NDArray[Any]) -> bool:
    return all(array.dtype.kind == "f" and bool(np.isfinite(array).all()) for array in arrays)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
