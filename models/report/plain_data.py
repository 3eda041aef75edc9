"""Plain data to frozen dataclasses, strictly: every member known, present and of the annotated type."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import quoted

T = TypeVar("T")
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}


def from_plain(cls: type[T], document: Any, where: str) -> T:
    """An instance of the dataclass `cls` from parsed JSON.

    Args:
        cls: its members are str, bool, int, float, None, Any, unions of them, tuple[X, ...], Mapping[str, X] and
            other such dataclasses.
        where: what messages call the document.

    Raises:
        ValueError: names the member, its value and what it must be.
    """
    if not isinstance(document, dict):
        raise ValueError(f"{where} must be an object, not {quoted(document, 40)}")
    hints = get_type_hints(cls)
    assert is_dataclass(cls)
    members = fields(cls)
    for name in document:
        if name not in hints:
            raise ValueError(f"{where}: unknown member {quoted(name)}")
    for member in members:
        if member.name not in document and member.default is MISSING and member.default_factory is MISSING:
            raise ValueError(f"{where}: member {member.name!r} is missing")
    values = {name: _value(hints[name], value, f"{where}.{name}") for name, value in document.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(wanted: Any, value: Any, where: str) -> Any:
    if wanted is Any:
        return value
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is UnionType:
        # Here a union is at most one dataclass, or plain types, with None.
        inner = next((kind for kind in arguments if is_dataclass(kind)), None)
        if inner is not None:
            return None if value is None and NoneType in arguments else _value(inner, value, where)
        return _plain(arguments, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, not {quoted(value, 40)}")
        return tuple(_value(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object, not {quoted(value, 40)}")
        return {name: _value(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if is_dataclass(wanted) and isinstance(wanted, type):
        return from_plain(wanted, value, where)
    return _plain((wanted,), value, where)


def _plain(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    # bool is an int to Python, not to a reader; 1 is a float to a reader, not to Python.
    accepted = type(value) in kinds or (float in kinds and type(value) is int)
    if accepted and not (isinstance(value, float) and not isfinite(value)):
        return float(value) if type(value) is int and int not in kinds else value
    raise ValueError(f"{where} {quoted(value, 40)} must be {' or '.join(_WORDS[kind] for kind in kinds)}")
