"""Calls a function after every forward of some of a model's modules, for as long as a block lasts."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Hook = Callable[[str, tuple[Any, ...], Any], object]
"""Takes the module's name, its inputs and its output."""


@contextmanager
def hooked(model: nn.Module, names: Iterable[str], hook: Hook) -> Iterator[None]:
    """Inside, call `hook` after each forward of the named modules."""
    with ExitStack() as stack:
        for name in names:

            def call(_: nn.Module, inputs: tuple[Any, ...], output: Any, name: str = name) -> None:
                hook(name, inputs, output)

            stack.callback(model.get_submodule(name).register_forward_hook(call).remove)
        yield
