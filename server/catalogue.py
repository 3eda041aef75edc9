"""Catalogue: the served models by name and version. It never changes: whoever holds one sees one state of things."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from .errors import ServiceError
from .served import ServedModel

Versions = Mapping[str, tuple[ServedModel, ...]]


class Catalogue(Mapping[str, ServedModel]):
    """By name, the version that answers who asks for none; the first name answers who asks for none at all.

    Args:
        versions: of each name, the one that answers by default first.
    """

    def __init__(self, versions: Versions = MappingProxyType({})) -> None:
        self._versions = {name: models for name, models in versions.items() if models}

    def __getitem__(self, name: str) -> ServedModel:
        return self._versions[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def every(self) -> Iterator[ServedModel]:
        """All versions of all names."""
        for models in self._versions.values():
            yield from models

    def versions(self, name: str) -> tuple[ServedModel, ...]:
        """Of one name; none where there is no such name."""
        return self._versions.get(name, ())

    def find(self, name: str | None = None, version: str | None = None) -> ServedModel:
        """The model that answers.

        Args:
            version: its number in the repository or its bundle's version; None: the default one.

        Raises:
            ServiceError: `unknown_model`, naming what there is.
        """
        if name is None:
            name = next(iter(self._versions))
        models = self._versions.get(name)
        if models is None:
            raise ServiceError("unknown_model", f"no model {name[:80]!r}; there are: {', '.join(self._versions)}")
        if version is None:
            return models[0]
        for model in models:
            if version in (model.number, model.version):
                return model
        there = ", ".join(model.spoken_version for model in models)
        raise ServiceError("unknown_model", f"no version {version[:80]!r} of {name}; there are: {there}")

    def with_model(
        self, model: ServedModel, keep: int = 1, *, first: bool = True
    ) -> tuple["Catalogue", tuple[ServedModel, ...]]:
        """With a model, and `keep` versions of its name at most; and those that are left out.

        Args:
            first: it answers by default; else the highest number does.
        """
        before = self._versions.get(model.name, ())
        same = tuple(old for old in before if old.number == model.number)
        others = tuple(old for old in before if old.number != model.number)
        order = (model, *others)
        if not first:
            order = tuple(sorted(order, key=lambda each: int(each.number or 0), reverse=True))
        return Catalogue({**self._versions, model.name: order[:keep]}), (*same, *order[keep:])

    def without(self, name: str, version: str | None = None) -> tuple["Catalogue", tuple[ServedModel, ...]]:
        """Without a version of a name, or all of them; and those that are left out.

        Raises:
            ServiceError: `unknown_model`.
        """
        gone = self.versions(name) if version is None else (self.find(name, version),)
        if not gone:
            self.find(name)
        kept = tuple(model for model in self.versions(name) if model not in gone)
        return Catalogue({**self._versions, name: kept}), gone
