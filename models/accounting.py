"""Counts parameters, bytes and multiply-accumulates (MACs) of a model, by layer and in all, also as if it were dense.

MACs are the counts of torch's FlopCounterMode, halved: convolutions, linear layers, attention and performer matmuls,
but no biases, norms or activations. A structured layer counts its weights for each token, padding included.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .layers.structured import StructuredLinear

# torch 2.10 has no formula for the CPU's attention; the others' holds for it.
_FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        torch.ops.aten._scaled_dot_product_efficient_attention
    ],
    **flop_registry,
}


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters; frozen ones (the performer's random features) are needed but not trained."""

    trainable: int
    frozen: int

    @property
    def total(self) -> int:
        return self.trainable + self.frozen


COUNTER = (
    "torch.utils.flop_counter formulas halved: convolutions, linear layers, attention and performer matmuls; "
    "a structured layer as its weights for each token"
)
"""What `macs` counts, in words."""


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulates of one image, in all and by module.

    Args:
        dense_equivalent: total if every structured layer were dense.
    """

    total: int
    by_layer: Mapping[str, int]
    dense_equivalent: int


@dataclass(frozen=True)
class LayerAccount:
    """Costs of one linear layer, dense or structured; `parameters` include the bias, `macs` are those of one image."""

    name: str
    kind: str
    in_features: int
    out_features: int
    parameters: int
    dense_parameters: int
    macs: int
    dense_macs: int


def parameter_count(model: nn.Module) -> ParameterCount:
    """Count trainable and frozen parameters. In a loaded bundle all are frozen; count `create_model` of its config."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return ParameterCount(trainable, sum(p.numel() for p in model.parameters()) - trainable)


def dense_equivalent_parameters(model: nn.Module) -> int:
    """Parameters that the model would have if every structured layer were dense."""
    return sum(p.numel() for p in model.parameters()) + sum(_saved(module) for module in model.modules())


def dense_equivalent_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers, in the model's dtypes, if every structured layer were dense."""
    stored = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    layers = [module for module in model.modules() if isinstance(module, StructuredLinear)]
    return stored + sum(_saved(layer) * next(layer.parameters()).element_size() for layer in layers)


def resident_bytes(model: nn.Module) -> int:
    """Bytes of memory of the model's tensors, packed copies included; shared memory counts once."""
    storages = {}
    for tensor in _all_tensors(model):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr() or id(tensor)] = storage.nbytes()
    return sum(storages.values())


def macs(model: nn.Module, size: int | tuple[int, int]) -> Macs:
    """Count the MACs of one image of `size` pixels (side, or height and width); `model` is not changed.

    A model with weights runs on one black image. A model of meta tensors runs on fake tensors, which import torch's
    compiler: one second and 150 MB that a server should not pay.

    Args:
        model: a model as built, before `prepare_for_inference`.
    """
    height, width = (size, size) if isinstance(size, int) else size
    first = next(model.parameters())
    mode: AbstractContextManager[Any] = FakeTensorMode() if first.is_meta else nullcontext()
    # Outside inference mode, in which the image must not be made either, composite operations arrive as their parts,
    # which have formulas.
    with torch.inference_mode(False), mode:
        twin = _twin(model, first.is_meta)
        device = "cpu" if first.is_meta else first.device
        image = torch.zeros(1, 3, height, width, dtype=first.dtype, device=device)
    counter = _MacCounter()
    for name, module in list(twin.named_modules()):
        if isinstance(module, StructuredLinear):
            module.forward = _Meter(module, counter)
        if name:
            module.register_forward_pre_hook(lambda *_, name=name: counter.path.append(name))
            module.register_forward_hook(lambda *_: counter.path.pop() and None)
    with torch.inference_mode(False), torch.no_grad(), mode, counter:
        twin(image)
    by_layer = dict(counter.counts)
    total = sum(by_layer.values())
    return Macs(total, by_layer, total + counter.saved)


def layer_accounts(model: nn.Module, size: int | None = None) -> tuple[LayerAccount, ...]:
    """Costs of every linear layer, in the model's order; MACs are 0 where no `size` in pixels is given."""
    counted = macs(model, size).by_layer if size is not None else {}
    return tuple(
        LayerAccount(
            name=name,
            kind=module.kind if isinstance(module, StructuredLinear) else "dense",
            in_features=module.in_features,
            out_features=module.out_features,
            parameters=(count := sum(p.numel() for p in module.parameters())),
            dense_parameters=count + _saved(module),
            macs=(done := counted.get(name, 0)),
            dense_macs=done // _macs_per_row(module) * module.in_features * module.out_features,
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | StructuredLinear)
    )


class _MacCounter(TorchDispatchMode):
    """Adds up the MACs of the operations in its context, for the module on top of `path`.

    torch's own FlopCounterMode hooks the modules of all threads while it counts, and a server loads one model while
    others answer.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path: list[str] = []
        self.counts: dict[str, int] = {}
        self.saved = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports the compiler

    def add(self, count: int) -> None:
        name = self.path[-1] if self.path else ""
        self.counts[name] = self.counts.get(name, 0) + count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = _FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.add(formula(*args, **kwargs, out_val=result) // 2)
        return result


class _Meter:
    """Stands in for a structured layer's forward: counts its weights for each token and returns zeros."""

    def __init__(self, layer: StructuredLinear, counter: _MacCounter) -> None:
        self.weights, self.dense_weights = layer.macs_per_row, layer.in_features * layer.out_features
        self.out_features, self.counter = layer.out_features, counter

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        self.counter.add(rows * self.weights)
        self.counter.saved += rows * (self.dense_weights - self.weights)
        return x.new_zeros((*x.shape[:-1], self.out_features))


def _twin(model: nn.Module, empty: bool) -> nn.Module:
    """A copy of the model that shares its tensors, or has empty CPU tensors of the same shapes."""
    memo: dict[int, Any] = {}
    for tensor in _all_tensors(model):
        memo[id(tensor)] = _with_memory(tensor) if empty else tensor
    return copy.deepcopy(model, memo).eval()


def _with_memory(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def _macs_per_row(layer: nn.Linear | StructuredLinear) -> int:
    return layer.macs_per_row if isinstance(layer, StructuredLinear) else layer.weight.numel()


def _saved(module: nn.Module) -> int:
    """How many weights fewer a structured layer has than a dense one; 0 for other modules."""
    if not isinstance(module, StructuredLinear):
        return 0
    return module.in_features * module.out_features - module.weight_count


def _all_tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():  # packed layers keep theirs in plain attributes
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _tensors_in(value)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_in(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
    elif type(value) is dict:
        yield from _tensors_in(list(value.values()))
