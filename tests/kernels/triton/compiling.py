"""Makes what Triton compiles of a launch, for GPUs that are not there."""

from importlib import import_module
from typing import Any

import torch

from milkweed.kernels.triton.launch import Launch, Tiles

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
