"""Runs the source of a Gluon kernel for Hopper on a CPU: TMA loads, mbarriers, asynchronous wgmma, warp specialisation.

Gluon's operations are of whole tiles, so an interpreter needs no lanes, swizzles or descriptors: these, and layouts,
are the compiler's, and a test compiles every kernel. What can be wrong in a kernel is its numbers and the order of its
operations (`machine`). A name, an argument or an operation that is not here is an error: nothing is ignored but
layouts, numbers of warps and registers.
"""

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .machine import Accumulator, Barrier, Machine, Mode, Shared, finish_products, multiply
from .values import Descriptor, Names, Pointer, Value

TANH = "tanh.approx.f32 $0, $1;"


class SharedView:
    """Shared memory as a kernel sees it."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.dtype = shared, shared.value.dtype

    def index(self, i: int) -> "SharedView":
        return SharedView(self.shared.part(lambda tensor: tensor[i]))

    def slice(self, start: int, length: int, dim: int) -> "SharedView":
        return SharedView(self.shared.part(lambda tensor: tensor.narrow(dim, start, length)))

    def permute(self, order: tuple[int, ...]) -> "SharedView":
        return SharedView(self.shared.part(lambda tensor: tensor.permute(order)))

    def store(self, value: Value) -> None:
        self.shared.machine.step()
        self.shared.write(value.tensor)


class Barriers:
    """Barriers in shared memory."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.barriers = [Barrier(machine) for _ in range(count)]

    def index(self, i: int) -> Barrier:
        if i < 0:
            raise IndexError(f"barrier {i}")
        return self.barriers[i]


class GluonKernels:
    """The kernels of a module's source.

    Args:
        source: a path, or the text of the module with a bug planted, say.
    """

    def __init__(self, source: Path | str) -> None:
        text = source.read_text() if isinstance(source, Path) else source
        self.machine, self.program = Machine(Mode()), 0
        modules, known = self._modules(), {"typing", "__future__"}

        def import_known(name: str, *more: Any) -> Any:
            if name in known:
                return builtins.__import__(name, *more)
            if name not in modules:
                raise NotImplementedError(f"the interpreter does not know the module {name}")
            return modules[name]

        namespace = {"__name__": "kernels", "__builtins__": vars(builtins) | {"__import__": import_known}}
        exec(compile(text, "kernels", "exec"), namespace)
        self.functions: dict[str, Any] = namespace

    def launch(self, name: str, grid: int, arguments: Sequence[Any], mode: Mode, *, dependent: bool = False) -> None:
        """Run a kernel's programs, one after the other.

        Args:
            arguments: numbers, `Pointer` and `Descriptor`.
            dependent: the launch before is over when a program has waited for it, not before.

        Raises:
            SynchronisationError, IndexError: what the kernel does wrong.
            NotImplementedError: what the interpreter does not know.
        """
        for self.program in range(grid):
            seed = None if mode.seed is None else mode.seed * grid + self.program
            self.machine = Machine(Mode(mode.late, seed), dependent=dependent)
            self.functions[name](*arguments)
            self.machine.end()

    def _modules(self) -> Mapping[str, Names]:
        hopper = Names(
            mbarrier=self._mbarrier(),
            tma=Names(async_load=self._async_load, async_copy_global_to_shared=self._async_load),
            fence_async_shared=self._fence,
            warpgroup_mma=self._warpgroup_mma,
            warpgroup_mma_init=lambda value: Accumulator(value.tensor),
            warpgroup_mma_wait=self._warpgroup_mma_wait,
        )
        gluon = Names(jit=jit, constexpr_function=lambda function: function, language=self._language())
        return {
            "triton.experimental": Names(gluon=gluon),
            "triton.experimental.gluon": gluon,
            "triton.experimental.gluon.language.nvidia.hopper": hopper,
            "triton.experimental.gluon.nvidia.hopper": Names(TensorDescriptor=None),
            "triton.language.extra.cuda": Names(gdc_wait=self._gdc_wait, gdc_launch_dependents=self._gdc_launch),
        }

    def _language(self) -> Names:
        layouts = ("NVMMADistributedLayout", "NVMMASharedLayout", "BlockedLayout", "SliceLayout")
        return Names(
            **dict.fromkeys(layouts, lambda *_: None),
            **{name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int64", "int32")},
            constexpr=lambda value: value,
            static_range=range,
            program_id=lambda axis: {0: self.program}[axis],
            arange=lambda start, end, layout: Value(torch.arange(start, end, dtype=torch.int32)),
            zeros=lambda shape, dtype, layout: Value(torch.zeros(shape, dtype=dtype)),
            expand_dims=lambda value, axis: Value(value.tensor.unsqueeze(axis)),
            minimum=lambda value, most: Value(value.tensor.clamp(max=most)),
            convert_layout=lambda value, layout: value,
            inline_asm_elementwise=inline_assembly,
            load=self._load,
            store=self._store,
            allocate_shared_memory=self._allocate,
            warp_specialize=self._warp_specialize,
        )

    def _mbarrier(self) -> Names:
        def stepping(method: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any, **keywords: int) -> None:
                self.machine.step()
                method(*arguments, **keywords)

            return call

        methods = {name: stepping(getattr(Barrier, name)) for name in ("init", "arrive", "expect", "wait")}
        return Names(MBarrierLayout=lambda: None, **methods)

    def _allocate(self, dtype: torch.dtype, shape: Sequence[int], layout: None) -> SharedView | Barriers:
        if dtype == torch.int64:
            return Barriers(self.machine, shape[0])
        return SharedView(Shared.allocate(self.machine, dtype, shape))

    def _warp_specialize(self, partitions: Sequence[Any], warps: Sequence[int], registers: Sequence[int]) -> None:
        if not len(partitions) - 1 == len(warps) == len(registers):
            raise NotImplementedError("warps and registers of all partitions but the first are needed")
        self.machine.specialize([partial(function, *arguments) for function, arguments in partitions])

    def _async_load(self, descriptor: Descriptor, at: Sequence[int], barrier: Barrier, tile: SharedView) -> None:
        self.machine.step()
        if descriptor.dependent:
            self.machine.need_launch_before("a load")
        tile.shared.load(descriptor.tile(at), barrier)

    def _warpgroup_mma(
        self, a: SharedView, b: SharedView, sums: Any, *, use_acc: bool = True, is_async: bool = False
    ) -> Accumulator:
        self.machine.step()
        if not is_async:
            raise NotImplementedError("wgmma that is not asynchronous")
        before = sums if isinstance(sums, Accumulator) else Accumulator(sums.tensor)
        return multiply(self.machine, a.shared, b.shared, before, adds=use_acc)

    def _warpgroup_mma_wait(self, num_outstanding: int, *, deps: Sequence[Any]) -> Any:
        self.machine.step()
        under_way = finish_products(self.machine, num_outstanding)

        def value(sums: Any) -> Any:
            return Value(sums.finish()) if isinstance(sums, Accumulator) and sums not in under_way else sums

        values = tuple(map(value, deps))
        return values[0] if len(values) == 1 else values

    def _fence(self) -> None:
        self.machine.step()
        for unfenced in self.machine.partition.unfenced:
            unfenced.fill_(False)
        self.machine.partition.unfenced = []

    def _load(self, pointer: Pointer) -> Value:
        if pointer.dependent:
            self.machine.need_launch_before("a load")
        at, _ = pointer.elements(None)
        return Value(pointer.tensor.view(-1)[at])

    def _store(self, pointer: Pointer, value: Value, *, mask: Value | None = None) -> None:
        self.machine.step()
        self.machine.need_launch_before("a store")
        at, accessed = pointer.elements(mask)
        if value.dtype != pointer.tensor.dtype or value.tensor.shape != at.shape:
            raise NotImplementedError(f"{value.dtype} {tuple(value.tensor.shape)} to {tuple(at.shape)} elements")
        pointer.tensor.view(-1)[at[accessed]] = value.tensor[accessed]

    def _gdc_wait(self) -> None:
        self.machine.dependent = False

    def _gdc_launch(self) -> None:
        self.machine.need_launch_before("gdc_launch_dependents")


def jit(function: Any = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
    """Return the function itself: `gluon.jit`, with or without arguments."""
    return function if function is not None else lambda function: function


def inline_assembly(
    text: str, constraints: str, arguments: Sequence[Value], *, dtype: torch.dtype, is_pure: bool, pack: int
) -> Value:
    """Compute what a line of PTX does, if it is one of those that kernels use."""
    if text != TANH:
        raise NotImplementedError(f"the interpreter does not know {text}")
    (x,) = arguments
    return Value(torch.tanh(x.tensor))
