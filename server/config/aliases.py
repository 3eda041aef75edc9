"""Parses and checks aliases, names that stand for a model or one version of it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ServiceError
from .tables import parse_table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AliasError(ServiceError, ValueError):
    """An alias is invalid, or forbids a change of the models; the message is one line that names both."""


@dataclass(frozen=True, slots=True)
class AliasTarget:
    """What an alias stands for. `version`: a number in the repository or a bundle's version; None is the one that
    answers by default."""

    model: str
    version: str | None = None

    @classmethod
    def parse(cls, text: str) -> "AliasTarget":
        """Parse `model` or `model@version`."""
        model, at, version = text.rpartition("@")
        return cls(model, version) if at else cls(text)

    def __str__(self) -> str:
        return self.model if self.version is None else f"{self.model}@{self.version}"


def read_aliases(value: Any) -> Any:
    """Read the setting: `production=deit@3,canary=deit@4`, the same in JSON, or a table. Raises ValueError where a name
    or its target is invalid."""
    table = parse_table(value)
    if isinstance(table, Mapping):
        for name, text in table.items():
            check_alias_name(str(name))
            target = AliasTarget.parse(text) if isinstance(text, str) else AliasTarget("")
            if not target.model or target.version == "":
                raise ValueError(f"{name} stands for {text!r}: expected MODEL or MODEL@VERSION")
    return table


def targets_of(aliases: Mapping[str, str]) -> dict[str, AliasTarget]:
    """The targets of the aliases in the settings."""
    return {name: AliasTarget.parse(text) for name, text in aliases.items()}


def describe_alias(name: str, target: AliasTarget) -> dict[str, str | None]:
    """An alias as the listings show it."""
    return {"name": name, "model": target.model, "version": target.version}


def check_alias_name(name: str) -> None:
    """Raises AliasError `bad_request` where the name is invalid."""
    if not _NAME.fullmatch(name):
        raise AliasError("bad_request", f"alias {name[:80]!r}: must be 1 to 64 letters, digits, '.', '_' or '-'")


def check_alias(name: str, target: AliasTarget, names: Collection[str]) -> None:
    """Raises AliasError where an alias has the name of a model, or its target is not the name of one."""
    check_alias_name(name)
    if name in names:
        raise AliasError("conflict", f"alias {name} -> {target} would hide the model {name}")
    if target.model not in names:
        there = ", ".join(names)
        raise AliasError(
            "unknown_model", f"alias {name} -> {target}: no model {target.model[:80]!r}; there are: {there}"
        )
