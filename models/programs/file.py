"""Programs in a file of a bundle: a server computes them without torch, and without building their model.

The file is a safetensors file of the program's arrays and of one more, STRUCTURE: JSON that says where each belongs. An
array that the bundle's weights hold is not repeated: STRUCTURE names the tensor.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.program import Convolution, Embed, Head, JoinedHead, NormedEmbed, Pixels
from ...kernels.cpu.program import Program as Program
from ...kernels.cpu.shape_rules import RULES
from ..bundle.config import BundleConfig
from ..bundle.program_record import ACTIVATIONS, OPERATORS, read_activations
from ..bundle.reading import WEIGHTS, about, check_digest, naming, read_unnamed
from ..bundle.safetensors_file import read_arrays
from ..bundle.strict_json import parse_json
from ..errors import BundleError, quoted
from .check import check
from .compact import Activations, compact, expanded, int8_layers, rounded

if TYPE_CHECKING:
    from torch import Tensor

STRUCTURE = "structure"

CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (*RULES, Convolution, Embed, Head, JoinedHead, NormedEmbed, Pixels, Program)
}
"""What a program is made of, by name."""

_KIND, _ARRAY, _TENSOR, _SHAPE = "kind", "array", "tensor", "shape"
_NARROW = {"float64": np.float32, "int64": np.int32}

Arrays = dict[str, NDArray[Any]]


def stored(
    program: Program, activations: Activations | None = None, *, weights: "Mapping[str, Tensor] | None" = None
) -> bytes:
    """The content of the file of a program of floats.

    Args:
        activations: of the layers that are computed in int8; the others are in bfloat16.
        weights: the content of the bundle's file of weights, of which the program holds no second copy.
    """
    import torch  # it is here where models are made, and NumPy has no bfloat16
    from safetensors.torch import save

    tensors, arrays = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, tensor in (weights or {}).items():
        bits = tensor.detach().cpu()
        tensors[name] = (bits.view(torch.uint16) if bits.dtype == torch.bfloat16 else bits).numpy()
    places = {_content(tensor): {_TENSOR: name} for name, tensor in tensors.items()}
    structure = json.dumps(_plain(compact(program, activations, tensors=tensors), arrays, places)).encode()
    arrays[STRUCTURE] = np.frombuffer(structure, np.uint8).copy()
    made = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return save({name: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for name, t in made.items()})


def load_operators(path: str | Path, config: BundleConfig | None = None) -> tuple[Program, BundleConfig]:
    """Read the program of a bundle, rounded for this CPU, and the config. Nothing needs torch.

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
        arrays = _read(path, OPERATORS, config)
        if f'"{_TENSOR}"'.encode() in arrays.get(STRUCTURE, np.empty(0)).tobytes():
            arrays = {**_read(path, WEIGHTS, config), **arrays}
        with about(OPERATORS):
            program, int8 = _program(arrays)
            actual = (program.embed.size, program.head.classifier.width, bool(int8))
            expected = (config.preprocess["size"], config.num_classes, config.program.precision == "int8")
            if actual != expected:
                raise BundleError(f"size, classes and int8 are {actual}, the config says {expected}")
        if int8:
            activations = read_activations(path, config.files[ACTIVATIONS])
            with about(ACTIVATIONS):
                if missing := int8 - activations.keys():
                    raise ValueError(f"there are none of {min(missing)}, whose weights are int8")
                program = rounded(program, activations)
    return program, config


def _plain(value: Any, arrays: Arrays, places: dict[Any, dict[str, str]]) -> Any:
    """A part of a program as JSON; its arrays go to `arrays`, but for those that have a place already."""
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, _NARROW.get(value.dtype.name))
        if (tensor := places.get(_content(array))) is not None:
            return {**tensor, _SHAPE: array.shape}
        place = places.setdefault((*_content(array), array.shape), {_ARRAY: str(len(arrays))})
        arrays[place[_ARRAY]] = array
        return place
    if is_dataclass(value):
        parts = {field.name: _plain(getattr(value, field.name), arrays, places) for field in fields(value)}
        return {_KIND: type(value).__name__, **parts}
    return [_plain(item, arrays, places) for item in value] if isinstance(value, list | tuple) else value


def _content(array: NDArray[Any]) -> tuple[str, bytes]:
    """What arrays have in common that differ in nothing but their shape."""
    return array.dtype.str, hashlib.sha256(array.tobytes()).digest()


def _read(path: Path, name: str, config: BundleConfig) -> Arrays:
    """The arrays of a file of a bundle: the one that was hashed."""
    with about(name):
        file = read_arrays(path / name)
    check_digest(name, file.sha256, config)
    return file.arrays


def _program(arrays: Arrays) -> tuple[Program, set[str]]:
    """The program of a file's arrays, in floats, and the layers that are int8 there.

    Raises:
        ValueError: it is none, or its parts do not fit each other.
    """
    if STRUCTURE not in arrays:
        raise ValueError(f"holds no array {STRUCTURE!r}")
    try:
        program = _made(parse_json(arrays[STRUCTURE].tobytes()), arrays)
        if not isinstance(program, Program):
            raise ValueError(f"holds a {type(program).__name__}")
        int8, program = int8_layers(program), expanded(program)
        check(program)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # A number's place may hold an array, whose text is long.
        kind = "" if isinstance(error, ValueError) else f"holds no program: {type(error).__name__}: "
        raise ValueError(kind + " ".join(str(error).split())[:200]) from None
    return program, int8


def _made(document: Any, arrays: Arrays) -> Any:
    if isinstance(document, list):
        return [_made(item, arrays) for item in document]
    if not isinstance(document, dict):
        return document
    if set(document) in ({_ARRAY}, {_TENSOR, _SHAPE}):
        array = arrays[document.get(_ARRAY) or document[_TENSOR]]
        array = array.reshape(document.get(_SHAPE, array.shape))
        return array.astype(np.int64) if array.dtype == np.int32 else array
    parts = dict(document)
    kind = CLASSES.get(parts.pop(_KIND, ""))
    if kind is None or set(parts) != {field.name for field in fields(kind)}:
        raise ValueError(f"{quoted(document, 60)} is no part of a program")
    return kind(**{name: _made(value, arrays) for name, value in parts.items()})
