"""Runs the merging kernel on many shapes against its definition, prints what came out as JSON: a script, not a test.

    TRITON_INTERPRET=1 python merging_cases.py cpu    interpreted, in float16
    python merging_cases.py cuda                      the operator on a GPU, in both dtypes and every tile variant

A process of its own, as triton_cases.py is.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milkweed.kernels.triton.merging import SPLITS, merge_launch, merge_tokens
from milkweed.kernels.triton.token_merging import class_importance, matched, merged


@dataclass(frozen=True)
class Case:
    """A merge of `count` of the tokens behind a prefix.

    Args:
        keys: random; tied: of a few directions, so that similarities are equal; equal: all the same.
        protect: above 0, the class token's attention is taken off.
    """

    tokens: int
    count: int
    prefix: int = 1
    heads: int = 2
    head_dim: int = 32
    width: int = 64
    sized: bool = False
    keys: str = "random"
    protect: float = 0.0
    batch: int = 3
    tile: int = 0


CASES = [
    *(Case(17, count, sized=sized) for count in (1, 3, 7) for sized in (False, True)),
    Case(4, 1, heads=1),
    Case(3, 1, prefix=0, width=8, sized=True),
    Case(16, 7, prefix=0),
    Case(19, 4, prefix=2, width=200, tile=1),
    Case(40, 9, prefix=5, head_dim=80, heads=1, sized=True),
    Case(197, 43, width=192, heads=3, head_dim=64, protect=0.1, tile=2),
    Case(154, 33, width=96, sized=True, protect=1.0, tile=1),
    Case(256, 127, sized=True, batch=2),
    Case(252, 100, prefix=5, batch=2),
    *(Case(50, 11, keys=keys, sized=sized) for keys in ("tied", "equal") for sized in (False, True)),
    Case(197, 43, keys="tied", protect=0.1),
    Case(65, 9, prefix=2, heads=3, head_dim=40, sized=True, protect=0.5),
    Case(17, 3, batch=0),
]


class Tensors:
    """The inputs of a case."""

    def __init__(self, case: Case, dtype: torch.dtype, device: str) -> None:
        generator = torch.Generator().manual_seed(case.tokens)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.case, batch, tokens = case, case.batch, case.tokens
        self.x = normal(batch, tokens, case.width).to(dtype)
        parts = normal(batch, tokens, 3, case.heads, case.head_dim)
        if case.keys != "random":
            kinds = 4 if case.keys == "tied" else 1
            kind = torch.randint(kinds, (batch, tokens), generator=generator).to(device)
            # Orthogonal keys of one number each: their cosines are exactly zero or one.
            parts[:, :, 1] = 2.0 * (torch.arange(case.head_dim, device=device) == kind[..., None])[:, :, None]
        self.qkv = parts.flatten(2).to(dtype)
        sizes = torch.randint(1, 6, (batch, tokens, 1), generator=generator).float().to(device)
        self.size = sizes if case.sized else None

    @property
    def importance(self) -> Tensor | None:
        if not self.case.protect:
            return None
        q, k, _ = self.qkv.unflatten(2, (3, self.case.heads, -1)).permute(2, 0, 3, 1, 4)
        scale = self.case.head_dim**-0.5
        return class_importance(q * scale, k, self.size, self.case.protect, self.case.prefix).contiguous()

    def definition(self) -> tuple[Tensor, Tensor]:
        """What merges by PyTorch, with the means of float64."""
        keys = self.qkv.unflatten(2, (3, self.case.heads, -1))[:, :, 1].mean(dim=2)[:, self.case.prefix :]
        order, nearest = matched(keys, self.importance)
        x, size = (None if tensor is None else tensor.double() for tensor in (self.x, self.size))
        assert x is not None
        return merged(x, size, order, nearest, self.case.count, self.case.prefix)

    def run(self) -> tuple[Tensor, Tensor]:
        """The operator on a GPU; on a CPU, whose implementation is plain PyTorch, the kernel is launched."""
        case, inputs = self.case, (self.x, self.qkv, self.size)
        how = (case.heads, case.count, case.prefix, case.protect, case.head_dim**-0.5)
        if self.x.is_cuda:
            return merge_tokens(*inputs, *how, case.tile)
        y = self.x.new_empty(case.batch, case.tokens - case.count, case.width)
        size = torch.empty(*y.shape[:2], 1)
        merge_launch(inputs, (y, size), *how, SPLITS[case.tile], pdl=False).run()
        return y, size


def judge(case: Case, dtype: torch.dtype, device: str) -> dict[str, object]:
    tensors = Tensors(case, dtype, device)
    (y, size), (want, sizes) = tensors.run(), tensors.definition()
    error = (y.double() - want).abs().max() / want.abs().max() if case.batch else 0.0
    return {
        "case": str(case),
        "dtype": str(dtype).removeprefix("torch."),
        "error": float(error),
        "same_merges": torch.equal(size.double(), sizes.double()),
        "stays": stays(tensors, y, size),
    }


def stays(tensors: Tensors, y: Tensor, size: Tensor) -> bool:
    """Whether NaN and infinities in one image, wherever they are, leave the others as they were, bit by bit."""
    if tensors.case.batch < 2:
        return True
    spoilt = 1
    others = torch.arange(len(y), device=y.device) != spoilt
    for name in ("x", "qkv", "size"):
        tensor = getattr(tensors, name)
        for value in (math.nan, math.inf, 0.0):
            if tensor is None or (name != "size" and not value):
                continue
            clean = tensor.clone()
            tensor[spoilt, tensor.shape[1] // 2] = value
            got, sizes = tensors.run()
            tensor.copy_(clean)
            if not (torch.equal(got[others], y[others]) and torch.equal(sizes[others], size[others])):
                return False
            if math.isnan(value) and name == "x" and not got[spoilt].isnan().any():
                return False
    return True


def cases(device: str) -> Iterator[tuple[Case, torch.dtype]]:
    for case in CASES:
        if device == "cpu":
            yield case, torch.float16
        else:
            for dtype in (torch.float16, torch.bfloat16):
                yield from ((replace(case, tile=tile), dtype) for tile in range(len(SPLITS)))


def main() -> None:
    device = sys.argv[1]
    # Fills torch.empty with NaN: what a kernel does not write shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(8, device=device).isnan().all()
    print(json.dumps([judge(case, dtype, device) for case, dtype in cases(device)]))


if __name__ == "__main__":
    main()
