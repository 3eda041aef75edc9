"""Explains in a few lines why a checkpoint does not fit an architecture."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..architectures.meta_init import on_meta
from ..architectures.registry import classifier_layers, create_model
from ..errors import CheckpointError, quoted
from .families import CheckpointFamily, shown_args

_SHOWN = 3
_MAX_KEY = 120
_EXTRA_HEAD = re.compile(r"(head_dist|aux_head|\w*head\w*|fc_aux|pre_logits)\.")
_IMAGENET_22K = (21841, 21843, 11221)
"""Numbers of classes in the usual selections of ImageNet-22k."""


@dataclass(frozen=True)
class Misfit:
    """Says where a state dict and an architecture differ.

    Args:
        missing, unexpected: keys of the architecture alone, and of the file alone.
        reshaped: keys whose shapes differ, with both shapes in words.
        expected: number of tensors that the architecture has.
        tensors: number of tensors in the file.
        common: number of keys that both have.
    """

    missing: Sequence[str]
    unexpected: Sequence[str]
    reshaped: Sequence[str]
    expected: int
    tensors: int
    common: int

    @classmethod
    def of(
        cls, expected: Mapping[str, Tensor], state: Mapping[str, Tensor], own_keys: Collection[str]
    ) -> "Misfit | None":
        """Compare the tensors of an architecture with those of a checkpoint; None where they fit.

        Args:
            own_keys: keys that the file has, without those that were filled in.
        """
        wrong = [key for key in expected if key in state and state[key].shape != expected[key].shape]
        misfit = cls(
            [key for key in expected if key not in state],
            [key for key in state if key not in expected],
            [f"{key} {list(state[key].shape)}, not {list(expected[key].shape)}" for key in wrong],
            len(expected),
            len(own_keys),
            sum(key in own_keys for key in expected),
        )
        return misfit if misfit.missing or misfit.unexpected or misfit.reshaped else None

    def error(self, source: str, arch: str, family: CheckpointFamily, hint: str) -> CheckpointError:
        """An error whose message is one line that ends in the hint; its details have a few more."""
        problems = [f"first missing {self.missing[0]}"] if self.missing else []
        problems += [f"first unexpected {quoted(self.unexpected[0])}"] if self.unexpected else []
        problems += [f"first of another shape {self.reshaped[0]}"] if self.reshaped else []
        message = (
            f"{source}: {self._verdict(arch, family)}; {self.expected} keys expected, {self.tensors} found, "
            f"{self.common} in common; {'; '.join(problems)}{hint}"
        )
        return CheckpointError(message, self._details(arch, family))

    def _verdict(self, arch: str, family: CheckpointFamily) -> str:
        if self.common and not (self.unexpected or self.reshaped or family.name == "vitdet"):
            return f"a part of {arch}: what it holds fits, the rest is missing"
        if family.fits(arch) or (family.name != "vitdet" and not family.candidates and 2 * self.common > self.expected):
            return f"does not fit {arch}, though it looks like it"
        return f"this looks like {family.looks_like}; you asked for {arch}"

    def _details(self, arch: str, family: CheckpointFamily) -> tuple[str, ...]:
        lines = []
        titled = (("missing", self.missing), ("unexpected", self.unexpected), ("other shape", self.reshaped))
        for title, keys in titled:
            if keys:
                shown = ", ".join(key if len(key) < _MAX_KEY else key[: _MAX_KEY - 3] + "..." for key in keys[:_SHOWN])
                lines.append(f"{len(keys)} {title}: {shown}{', ...' if len(keys) > _SHOWN else ''}")
        if family.candidates and not family.fits(arch):
            lines.append(f"try the architecture {' or '.join(family.candidates)}")
        elif not family.candidates and family.name != "unknown":
            lines.append(f"milkweed does not build {family.name} models of this kind yet")
        heads = sorted({key.partition(".")[0] for key in self.unexpected if _EXTRA_HEAD.match(key)})
        if heads:
            lines.append(f"it has a further head, {', '.join(heads)}, which {arch} has not")
        classifier = tuple(f"{layer}." for layer in classifier_layers(arch))
        if self.missing and all(key.startswith(classifier) for key in self.missing):
            lines.append("the checkpoint has no classifier: --num-classes 0 imports it for its embedding")
        return tuple(lines)


def arguments_hint(arch: str, state: Mapping[str, Tensor], arch_args: Mapping[str, Any]) -> str:
    """A hint at the arguments with which the architecture has the tensors, tried; "" where no such are known."""
    shapes = {key: tensor.shape for key, tensor in state.items()}

    def fits(args: Mapping[str, Any]) -> bool:
        try:
            with on_meta():
                model = create_model(arch, **{**arch_args, **args})
        except ValueError:  # not an argument of this architecture
            return False
        return {key: tensor.shape for key, tensor in model.state_dict().items()} == shapes

    args = shown_args(state)
    if not args or not fits(args):
        return ""
    for name in list(args):
        fewer = {other: value for other, value in args.items() if other != name}
        args = fewer if fits(fewer) else args
    return f"; it fits with --arch-args '{json.dumps(args)}'"


def classes_hint(classes: int) -> str:
    """A hint in brackets for the numbers of classes of ImageNet-22k, else an empty text."""
    if classes in _IMAGENET_22K:
        return " (a classifier of ImageNet-22k: weights fine-tuned on ImageNet-1k lie in a file of their own)"
    return ""
