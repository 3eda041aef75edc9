"""Makes what Triton compiles of a launch, for GPUs that are not there, layers without memory, and planted bugs."""

import sys
import tempfile
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from milkweed.kernels.blocked import BlockedMonarch
from milkweed.kernels.triton.launch import Launch, Tiles
from milkweed.kernels.triton.layout import sort_layer, sort_mlp

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
}


def specialised(launch: Launch) -> str:
    """Return what tells the kernel that is compiled for a launch from others."""
    missing = [argument is None for argument in launch.arguments]
    return f"{launch.kernel} {launch.constants} {launch.options} {missing}"


def source_of(launch: Launch, kernel: Any = None) -> Any:
    """Return its `ASTSource` or `GluonASTSource`; `kernel` takes the place of the launch's function."""
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    name, function = launch.kernel.split(".")
    gluon = name == "inner_mlp"
    if kernel is None:
        kernel = getattr(import_module(f"milkweed.kernels.triton.{name}"), function)
    constants, signature = dict(launch.constants), dict[str, str]()
    for parameter, argument in zip(kernel.arg_names, launch.arguments, strict=False):
        if argument is None:
            constants[parameter] = None
        elif isinstance(argument, Tiles):
            layout = f",{NVMMASharedLayout(128, 16, 2)!r}" if gluon else ""
            tile = f"{TYPES[argument.matrix.dtype]}[{argument.rows},{argument.columns}]"
            signature[parameter] = f"tensordesc<{tile}{layout}>"
        else:
            signature[parameter] = "i32" if isinstance(argument, int) else f"*{TYPES[argument.dtype]}"
    pointers = [i for i, name in enumerate(kernel.arg_names) if signature.get(name, "").startswith("*")]
    return (GluonASTSource if gluon else ASTSource)(
        fn=kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in pointers},
    )


def mlp_without_memory(width: int, hidden: int, nblocks: int) -> tuple[BlockedMonarch, BlockedMonarch]:
    """Return fc1 and fc2 of an MLP, in bfloat16."""
    narrow, wide = width // nblocks, hidden // nblocks

    def layer(p: int, s: int) -> BlockedMonarch:
        w1, w2, bias = torch.empty(nblocks, narrow, p), torch.empty(nblocks, s, narrow), torch.zeros(nblocks * s)
        return sort_layer(w1, w2, bias, nblocks * s, torch.bfloat16)

    fc1, fc2 = sort_mlp(layer(narrow, wide), layer(wide, narrow), hidden)
    return without_memory(fc1), without_memory(fc2)


def without_memory(layer: BlockedMonarch) -> BlockedMonarch:
    assert layer.bias is not None
    return BlockedMonarch(*(t.to("meta") for t in (layer.w1, layer.w2, layer.bias)), layer.p, layer.out_features)


def planted(text: str, name: str = "planted") -> Any:
    """Return a module of changed source text, which takes the place of the module of that name."""
    path = Path(tempfile.mkdtemp()) / "planted.py"
    path.write_text(text)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
