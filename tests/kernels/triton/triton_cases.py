"""Runs the Triton kernels on many shapes against float64 and prints what came out, as JSON: a script, not a test.

    TRITON_INTERPRET=1 python triton_cases.py cpu 5  every fifth interpreted; no bfloat16, whose products it gets wrong
    python triton_cases.py cuda 1                    all: the operators on a GPU, more shapes, every tile variant

A process of its own, because triton reads TRITON_INTERPRET when a kernel is defined, once and for all.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.blocked import Activation, BlockedMonarch, activated
from milkweed.kernels.reference import monarch_reference
from milkweed.kernels.triton.inner import ROWS
from milkweed.kernels.triton.launch import linear_launches, mlp_launches
from milkweed.kernels.triton.layout import sort_layer, sort_mlp
from milkweed.kernels.triton.linear import triton_linear, triton_mlp
from milkweed.kernels.triton.tiles import SMALL, SQUARE, VARIANTS, WIDE, DeviceProperties

HOPPER = DeviceProperties((9, 0), 232448)
WIDE_TILE, SQUARE_TILE, SMALL_TILE = map(VARIANTS.index, (WIDE, SQUARE, SMALL))
SQUARE_TMA = VARIANTS.index(replace(SQUARE, tma=True))
TMA = next(i for i, variant in enumerate(VARIANTS) if variant.tma)


@dataclass(frozen=True)
class Layer:
    """Factors w1 (K, q, p), w2 (J, s, .) and the widths kept; all of them when 0."""

    K: int
    q: int
    p: int
    J: int
    s: int
    in_features: int = 0
    out_features: int = 0

    @property
    def width(self) -> int:
        return self.in_features or self.K * self.p

    @property
    def out(self) -> int:
        return self.out_features or self.J * self.s


@dataclass(frozen=True)
class Case:
    """A layer, or an MLP of two, on some rows."""

    name: str
    rows: int
    layers: tuple[Layer, ...]
    act: Activation = Activation.NONE
    plain: bool = False  # no bias, no residual
    tile: int = 0
    inner: int | None = None  # tile of an MLP's inner half, on Hopper
    dtypes: tuple[str, ...] = ("float16", "bfloat16")


LINEARS = [
    Case("one row", 1, (Layer(4, 24, 24, 4, 24),), Activation.GELU),
    Case("nb 2, odd rank", 15, (Layer(2, 31, 64, 2, 64),), Activation.GELU),
    Case("nb 8, rank below nb", 17, (Layer(8, 6, 24, 8, 16),), Activation.GELU),
    Case("nb 4, wide tile, ragged", 100, (Layer(4, 96, 96, 4, 96),), Activation.GELU, tile=WIDE_TILE),
    Case("nb 4, parts of a tile", 100, (Layer(4, 192, 32, 4, 64),), tile=WIDE_TILE),
    Case("nb 4, descriptors", 100, (Layer(4, 96, 96, 4, 96),), Activation.GELU, tile=TMA),
    Case("nb 4, descriptors, parts", 140, (Layer(4, 192, 64, 4, 80),), tile=TMA),
    Case("token mixing", 33, (Layer(4, 49, 49, 4, 96),), Activation.GELU),
    Case("token mixing back", 17, (Layer(4, 49, 96, 4, 49),)),
    Case("cropped", 17, (Layer(4, 20, 50, 4, 30, 190, 113),)),
    Case("cropped, descriptors", 130, (Layer(4, 32, 48, 4, 30, 184, 113),), tile=TMA),
    Case("K 3, J 6, cropped", 5, (Layer(3, 8, 10, 6, 7, 29, 38),), Activation.GELU),
    Case("K 2, J 8", 5, (Layer(2, 12, 10, 8, 7),), Activation.GELU, plain=True),
    Case("low rank, K = J = 1", 17, (Layer(1, 16, 40, 1, 30),)),
]

MLPS = [
    Case("mlp nb 4", 17, (Layer(4, 24, 24, 4, 96), Layer(4, 24, 96, 4, 24))),
    Case("mlp padded", 100, (Layer(4, 36, 36, 4, 36), Layer(4, 36, 36, 4, 36)), tile=SQUARE_TILE),
    Case("mlp nb 4 to 2", 1, (Layer(4, 36, 36, 4, 36), Layer(2, 18, 72, 2, 72))),
    Case("mlp nb 2 to 3, cropped", 9, (Layer(2, 14, 7, 4, 11, 13, 41), Layer(3, 8, 14, 2, 9, 41, 17))),
    Case("mlp nb 4 to 8, small tile", 33, (Layer(4, 12, 16, 4, 16), Layer(8, 4, 8, 8, 8)), tile=SMALL_TILE),
    Case("mlp descriptors", 130, (Layer(4, 32, 32, 4, 64), Layer(4, 32, 64, 4, 32)), plain=True, tile=TMA),
]

EVERY_TILE = range(len(VARIANTS))
MODELS = [
    Case(
        f"{name}, {rows} rows, tile {tile}",
        rows,
        (Layer(nb, d // nb, d // nb, nb, h // nb), Layer(nb, d // nb, h // nb, nb, d // nb)),
        tile=tile,
        dtypes=("bfloat16",),
    )
    for name, d, h, nb, tiles in (
        ("ViT-B", 768, 3072, 4, EVERY_TILE),
        ("ViT-S", 384, 1536, 4, EVERY_TILE),
        ("ViTAE-S", 384, 1152, 4, (0, TMA)),
        ("ViTAE-T", 256, 512, 4, (0, TMA)),
        ("Mixer-S", 512, 2048, 8, (0, TMA)),
        ("nb 2", 256, 512, 2, (0, TMA)),
    )
    for rows, tile in [(1, 0), (197, 0), *((1577, tile) for tile in tiles)]
]
"""Too large to interpret."""

INNER = [
    Case(
        f"ViT-B, {rows} rows, inner tile {tile}",
        rows,
        (Layer(4, 192, 192, 4, 768), Layer(4, 192, 768, 4, 192)),
        plain=plain,
        tile=SQUARE_TMA,
        inner=tile,
        dtypes=("bfloat16",),
    )
    for rows, plain in ((1, False), (197, True), (1577, False))
    for tile in range(len(ROWS))
]
"""Those of the kernel in Gluon, whose interpreter is another."""


class Truth:
    """A case's tensors and its value in float64, from the tensors as they were rounded."""

    def __init__(self, case: Case, dtype: torch.dtype, device: str) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.case = case
        first, last = case.layers[0], case.layers[-1]
        self.x = normal(case.rows, first.width).to(dtype)
        self.residual = None if case.plain else normal(case.rows, last.out).to(dtype)
        self.weights = []
        for layer in case.layers:
            r = layer.K * layer.q // layer.J
            w1 = (normal(layer.K, layer.q, layer.p) / layer.p**0.5).to(dtype)
            w2 = (normal(layer.J, layer.s, r) / r**0.5).to(dtype)
            self.weights.append((w1, w2, None if case.plain else normal(layer.out)))

    def value(self) -> Tensor:
        y = self.x.double()
        for i, (layer, (w1, w2, bias)) in enumerate(zip(self.case.layers, self.weights, strict=True)):
            y = F.gelu(y) if i else y
            y = monarch_reference(F.pad(y, (0, layer.K * layer.p - layer.width)), w1.double(), w2.double())
            y = y[:, : layer.out] if bias is None else y[:, : layer.out] + bias.double()
        y = activated(y, self.case.act)
        return y if self.residual is None else y + self.residual.double()

    def sorted(self) -> list[BlockedMonarch]:
        found = [
            sort_layer(*weights, layer.out, self.x.dtype)
            for layer, weights in zip(self.case.layers, self.weights, strict=True)
        ]
        return found if len(found) == 1 else list(sort_mlp(found[0], found[1], self.case.layers[0].out))


def run(truth: Truth, layers: list[BlockedMonarch]) -> Tensor:
    """Run the operators on a GPU; on a CPU these are plain PyTorch, so the kernels are launched one by one there."""
    x, residual, case = truth.x, truth.residual, truth.case
    if x.is_cuda:
        if len(layers) == 1:
            return triton_linear(x, layers[0], residual, case.act, case.tile)
        return triton_mlp(x, layers[0], layers[1], residual, case.tile, case.inner)
    y, variant = x.new_empty(len(x), layers[-1].out_features), VARIANTS[case.tile]
    if len(layers) == 1:
        launches = linear_launches(x, layers[0], residual, case.act, y, variant, HOPPER)
    else:
        launches = mlp_launches(x, layers[0], layers[1], residual, y, variant, HOPPER)
    for launch in launches:
        launch.run()
    return y


def judge(case: Case, dtype: torch.dtype, device: str) -> dict[str, object]:
    truth = Truth(case, dtype, device)
    layers = truth.sorted()
    y, want = run(truth, layers), truth.value()
    error = float((y.double() - want).norm() / want.norm())
    broken = case.rows // 2
    truth.x[broken, 0] = float("nan")
    nan = run(truth, layers)
    others = torch.arange(case.rows, device=device) != broken
    return {
        "case": case.name,
        "dtype": str(dtype).removeprefix("torch."),
        "error": error,
        # The untouched rows of the second run are the first's, bit by bit.
        "own_row_only": torch.equal(nan[others], y[others]) and bool(nan[broken].isnan().any()),
    }


def cases(device: str) -> Iterator[tuple[Case, torch.dtype]]:
    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    for case in [*LINEARS, *MLPS, *(MODELS if device == "cuda" else []), *(INNER if hopper else [])]:
        for dtype in case.dtypes:
            if device == "cuda" or dtype != "bfloat16":
                yield case, getattr(torch, dtype)


def main() -> None:
    device, step = sys.argv[1], int(sys.argv[2])
    # Fills torch.empty with NaN: what a kernel does not write shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(8, device=device).isnan().all()
    print(json.dumps([judge(case, dtype, device) for case, dtype in list(cases(device))[::step]]))


if __name__ == "__main__":
    main()
