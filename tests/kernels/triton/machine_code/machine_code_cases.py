"""Compiles kernels for Hopper and prints what their machine code is, as JSON: a script, not a test.

    python machine_code_cases.py NAME...      the named cases; all of them without names

A process of its own, since the environment of another Triton is one. What was compiled from the same sources by the
same Triton is compiled once a machine.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from milkweed.kernels.blocked import Activation
from milkweed.kernels.impls.triton import AROUND_INNER
from milkweed.kernels.triton.inner import ROWS
from milkweed.kernels.triton.launch import Launch, Tiles, mlp_launches
from milkweed.kernels.triton.linear import SOURCES
from milkweed.kernels.triton.quantized import TILES, product_launch, rows_launch
from milkweed.kernels.triton.tiles import VARIANTS, DeviceProperties, tile_refusal

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from compiling import mlp_without_memory, planted, source_of, specialised  # type: ignore[import-not-found]
from machine_code import MachineCode  # type: ignore[import-not-found]

HOPPER = DeviceProperties((9, 0), 232448, pdl=True)
MODELS = {"ViT-B": (768, 3072), "ViT-S": (384, 1536)}
LAYERS = {"qkv": (2304, 768), "proj": (768, 768), "fc1": (3072, 768), "fc2": (768, 3072)}
"""Outputs and inputs of ViT-B's linear layers."""
BATCHES = (8, 128)
CHECKED = ("machine_code.py", "machine_code_cases.py", "serialised.py", "../compiling.py")
Compile = Callable[[], MachineCode]


def launches(model: str, batch: int, tile: int, inner: int | None = None) -> list[Launch]:
    """The launches of a model's MLP of 4 blocks, on tensors without memory."""
    x = torch.empty(197 * batch, MODELS[model][0], dtype=torch.bfloat16, device="meta")
    layers = mlp_without_memory(*MODELS[model], 4)
    return list(mlp_launches(x, *layers, x, torch.empty_like(x), VARIANTS[tile], HOPPER, inner))


def cases() -> Iterator[tuple[str, int, Compile]]:
    """Yield name, tensor instructions of a step, and compilation of each case; equal kernels once."""
    seen = set()
    for model in MODELS:
        for batch in BATCHES:
            for tile, variant in enumerate(VARIANTS):
                if variant.rows >= 64 and tile_refusal(tile, 197 * batch, HOPPER.capability) is None:
                    for number, launch in enumerate(launches(model, batch, tile)):
                        kernel = specialised(launch)
                        if kernel not in seen:
                            seen.add(kernel)
                            name = f"{model}, tile {tile}, launch {number} of {batch} images"
                            blocks = launch.constants["BLOCKS"] if launch.constants["INTERLEAVED"] else 1
                            yield name, launch.constants["BK"] // 16 * blocks, partial(compiled, launch)
    for tile in range(len(ROWS)):
        launch = launches("ViT-B", 128, AROUND_INNER, tile)[1]
        yield f"inner half, {ROWS[tile]} rows", 4, partial(compiled, launch)
        early = f"planted: inner half, {ROWS[tile]} rows, bias loaded early"
        yield early, 4, lambda launch=launch: compiled(launch, bias_loaded_early())
    yield "planted: serialised", 4, compile_serialised
    for kind, shape, tile in product(("int8", "fp8"), LAYERS, range(len(TILES))):
        yield f"{kind} {shape}, tile {tile}", 4, partial(compiled, quantized(kind, shape, tile))
    yield "rows: norm to int8", 4, partial(compiled, quantizer())


def compiled(launch: Launch, kernel: Any = None) -> MachineCode:
    return MachineCode.compile(source_of(launch, kernel), **launch.options)


def bias_loaded_early() -> Any:
    """Return the kernel of the inner half with more registers alive than a thread of three warpgroups has."""
    text = (SOURCES / "inner_mlp.py").read_text()
    load = re.search(r"column = gl.arange.*\n *h \+= gl.expand_dims\((gl.load.*), 0\)\n", text)
    assert load
    text = text.replace(load[0], "h += gl.expand_dims(b, 0)\n")
    wait = "mbarrier.wait(barriers[2].index(stage), (chunk"
    column = "gl.arange(0, SIDE, gl.SliceLayout(0, _accumulators(SIDE)))"
    text = text.replace(wait, f"b = {load[1].replace('column', column)}\n            {wait}")
    return planted(text).inner_product


def compile_serialised() -> MachineCode:
    from serialised import serialised  # type: ignore[import-not-found]

    t, w2, w3, u = (torch.empty(n, 192, dtype=torch.bfloat16, device="meta") for n in (128, 768, 192, 128))
    tiles = Tiles(t, 128, 64), Tiles(w2, 64, 64), Tiles(w3, 64, 64)
    return compiled(
        Launch("kernels.serialised", (1,), (*tiles, u), {"CHUNKS": 12, "R": 192, "Q": 192}, 8, 3), serialised
    )


def quantized(kind: str, shape: str, tile: int) -> Launch:
    """A linear layer of ViT-B in 8 bits: fc1 gives 8 bits behind GELU, proj and fc2 add a residual."""
    (N, K), rows = LAYERS[shape], 197 * 128
    weight = torch.empty(N, K, dtype={"int8": torch.int8, "fp8": torch.float8_e4m3fn}[kind], device="meta")
    y, x8 = weight.new_empty(rows, N, dtype=torch.bfloat16), weight.new_empty(rows, K)
    layer = [weight, *torch.empty(4, N, device="meta")]
    residual, following = y if shape in ("proj", "fc2") else None, layer if shape == "fc1" else None
    act, y = (Activation.GELU, y.to(weight.dtype)) if shape == "fc1" else (Activation.NONE, y)
    return product_launch(x8, layer, act, residual, following, y, torch.bfloat16, tile, pdl=True)


def quantizer() -> Launch:
    x, (weight, *layer) = torch.empty(197, 768, dtype=torch.bfloat16, device="meta"), torch.empty(5, 768, device="meta")
    return rows_launch(x, [weight.to(torch.int8), *layer], layer[:2], 1e-6, x.to(torch.int8), pdl=True)


def described(name: str, step: int, compile_case: Compile) -> dict[str, Any]:
    code = compile_case()
    instruction = {"int8": "IGMMA.*S8.S8", "fp8 ": "QGMMA.*E4M3.E4M3"}.get(name[:4], "HGMMA.*BF16")
    return {
        "case": name,
        "tensor": dict(code.tensor_instructions()),
        "waits": code.count("waits"),
        "local": code.count("local"),
        "loads before": code.count("loads", (0, code.first("wait for the launch before"))),
        "prefetches": code.count("prefetches"),
        "registers": code.registers,
        "threads": code.threads,
        "shared": code.shared_bytes,
        "faults": code.faults(instruction, step) if name != "rows: norm to int8" else [],
    }


def main() -> None:
    import triton

    sources = sorted([*SOURCES.glob("*.py"), *map(Path(__file__).parent.joinpath, CHECKED)])
    digest = hashlib.sha256("\0".join([triton.__version__, *(path.read_text() for path in sources)]).encode())
    cache = Path(tempfile.gettempdir()) / f"milkweed-triton-{os.getuid()}" / digest.hexdigest()[:20]
    cache.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (name, step, compile_case) in enumerate(cases()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        stored = cache / f"{number}.json"
        if not stored.exists():
            partial = cache / f"{number}.{os.getpid()}"
            partial.write_text(json.dumps(described(name, step, compile_case)))
            partial.replace(stored)
        rows.append(json.loads(stored.read_text()))
    print(json.dumps({"triton": triton.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
