"""ModelIndex: the served models by name and version. An index never changes: each change makes another one."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ..config.aliases import AliasError, AliasTarget, check_alias
from ..errors import ServiceError
from .served_model import ServedModel


class ModelIndex(Mapping[str, ServedModel]):
    """Maps each name to its default version; the first name answers requests that name no model.

    Args:
        versions: of each name, the one that answers by default first.
        aliases: names that stand for one of these, or will once it is there.
    """

    def __init__(
        self,
        versions: Mapping[str, tuple[ServedModel, ...]] = MappingProxyType({}),
        aliases: Mapping[str, AliasTarget] = MappingProxyType({}),
    ) -> None:
        self._versions = {name: models for name, models in versions.items() if models}
        self.aliases: Mapping[str, AliasTarget] = dict(aliases)

    def __getitem__(self, name: str) -> ServedModel:
        return self._versions[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def every(self) -> Iterator[ServedModel]:
        """Yield all versions of all names."""
        for models in self._versions.values():
            yield from models

    def versions(self, name: str) -> tuple[ServedModel, ...]:
        """Return all versions of one name; none where there is no such name."""
        return self._versions.get(name, ())

    def find(self, name: str | None = None, version: str | None = None) -> ServedModel:
        """The model that answers.

        Args:
            name: its own or an alias.
            version: its number in the repository or its bundle's version; None: the default one.

        Raises:
            ServiceError: `unknown_model`, naming what there is; `bad_request` for a version other than the one that
                an alias stands for.
        """
        if name is None:
            name = next(iter(self._versions), "")
        models = self._versions.get(name)
        if models is None:
            if name in self.aliases:
                return self._find_alias(name, version)
            there = ", ".join((*self._versions, *self.aliases))
            raise ServiceError("unknown_model", f"no model {name[:80]!r}; there are: {there}")
        if version is None:
            return models[0]
        for model in models:
            if version in (model.number, model.version):
                return model
        there = ", ".join(model.version_text for model in models)
        raise ServiceError("unknown_model", f"no version {version[:80]!r} of {name}; there are: {there}")

    def with_alias(self, name: str, target: AliasTarget) -> "ModelIndex":
        """Make an index in which `name` stands for `target`, whatever it stood for before. Raises AliasError where it
        would hide a model, or stands for nothing that is served."""
        check_alias(name, target, self._versions)
        try:
            self.find(target.model, target.version)
        except ServiceError as error:
            raise AliasError(error.code, f"alias {name} -> {target}: {error.message}") from None
        return ModelIndex(self._versions, {**self.aliases, name: target})

    def without_alias(self, name: str) -> "ModelIndex":
        """Make an index without an alias. Raises AliasError `unknown_model`."""
        if name not in self.aliases:
            there = ", ".join(self.aliases) or "none"
            raise AliasError("unknown_model", f"no alias {name[:80]!r}; there are: {there}")
        return ModelIndex(self._versions, {other: self.aliases[other] for other in self.aliases if other != name})

    def pins(self, name: str) -> set[str]:
        """The versions of a name that aliases stand for."""
        targets = self.aliases.values()
        return {target.version for target in targets if target.model == name and target.version is not None}

    def trimmed(self, name: str, keep: int) -> tuple["ModelIndex", tuple[ServedModel, ...]]:
        """Make an index with `keep` versions of a name and those that aliases pin; also return what is left out."""
        kept, left = self._split(self.versions(name), name, keep)
        return ModelIndex({**self._versions, name: kept}, self.aliases), left

    def with_model(
        self, model: ServedModel, keep: int = 1, *, first: bool = True
    ) -> tuple["ModelIndex", tuple[ServedModel, ...]]:
        """Make an index with a model, `keep` versions of its name and those that aliases pin; also return what is left
        out. `first`: the model answers by default; else the highest number does. Raises AliasError where its name is an
        alias, or it replaces what an alias stands for."""
        if model.name in self.aliases:
            target = self.aliases[model.name]
            raise AliasError("conflict", f"model {model.name}: an alias has this name, it stands for {target}")
        before = self._versions.get(model.name, ())
        same = tuple(old for old in before if old.number == model.number)
        others = tuple(old for old in before if old.number != model.number)
        order = (model, *others)
        if not first:
            order = tuple(sorted(order, key=lambda version: int(version.number or 0), reverse=True))
        kept, left = self._split(order, model.name, keep)
        return self._changed(model.name, kept), (*same, *left)

    def without(self, name: str, version: str | None = None) -> tuple["ModelIndex", tuple[ServedModel, ...]]:
        """Make an index without a version of a name, or all of them; also return what is left out. Raises ServiceError
        `unknown_model`. Raises AliasError where an alias stands for it."""
        gone = self.versions(name) if version is None else (self.find(name, version),)
        if not gone:
            self.find(name)
        kept = tuple(model for model in self.versions(name) if model not in gone)
        return self._changed(name, kept), gone

    def _find_alias(self, alias: str, version: str | None) -> ServedModel:
        """The model that an alias stands for; a version may be said again, but no other one."""
        target = self.aliases[alias]
        if target.version is None:
            return self.find(target.model, version)
        model = self.find(target.model, target.version)
        if version not in (None, model.number, model.version):
            raise ServiceError("bad_request", f"{alias} stands for {target}: version {version[:80]!r} is another one")
        return model

    def _split(
        self, order: Sequence[ServedModel], name: str, keep: int
    ) -> tuple[tuple[ServedModel, ...], tuple[ServedModel, ...]]:
        """What of all versions stays, and what goes."""
        pins = self.pins(name)
        kept = tuple(m for index, m in enumerate(order) if index < keep or pins & {m.number, m.version})
        return kept, tuple(model for model in order if model not in kept)

    def _changed(self, name: str, kept: tuple[ServedModel, ...]) -> "ModelIndex":
        """Make an index with other versions of a name, where no alias loses what it stands for."""
        changed = ModelIndex({**self._versions, name: kept}, self.aliases)
        for alias, target in self.aliases.items():
            if target.model == name and self._has(target) and not changed._has(target):
                raise AliasError(
                    "conflict", f"alias {alias} stands for {target}: point it elsewhere or delete it first"
                )
        return changed

    def _has(self, target: AliasTarget) -> bool:
        try:
            self.find(target.model, target.version)
        except ServiceError:
            return False
        return True
