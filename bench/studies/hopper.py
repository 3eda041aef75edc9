"""Microseconds of what `bench.gpu` measures, by arithmetic, beside those that a GPU measured: an estimate, no figure.

    python -m milkweed.bench.studies.hopper [JOURNAL]

A launch takes as long as the slowest of its resources: memory, reads from the L2 cache and, on each multiprocessor,
tensor cores, issue slots, shared memory, or the latency of one program that its neighbours do not hide. Instructions
are those that ptxas made. Assumed: 1.75 GHz under load, 8 TB/s from the L2 cache, 790 TFLOP/s in large bfloat16
products, 0.62 of them by `mma.sync`, 1 us between the launches of a graph and 0.7 us until they are at full speed.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

from ..gpu.goals import fastest
from ..gpu.journal import Record, read, rows
from ..gpu.plan import ATTENTION_SHAPES, GOAL_BATCHES, GOAL_SHAPES, LEVERS, MERGED, MLP_SHAPES, PRODUCTS, VIT_B, VIT_S

MULTIPROCESSORS, CLOCK, MAC = 132, 1.75e9, 2048
"""And the multiply-adds of two-byte numbers in a clock."""

SUSTAINED, PRODUCTS_RATE, MMA_SYNC = 0.86, 790e12, 0.62
L2_RATE, L2_PORT = 8.0e12, 50.0
"""Bytes a second to all multiprocessors, and bytes a clock to one."""

LAUNCH, BLOCKS, DEPTH, TOKENS = 1.7, 4, 12, 197
MERGE_US = 8.0
"""A launch that merges tokens takes so many microseconds."""

DECODE_MS, CORES = (1.35, 1.9), 16
"""A core's milliseconds a photograph, and the cores beside such a card."""


@dataclass(frozen=True)
class Gpu:
    """A card: bytes a second of its memory, and bytes of its L2 cache."""

    name: str
    memory: float
    l2: float

    def moved(self, nbytes: float, kept: float = 0.0) -> float:
        """Return the microseconds of bytes from and to memory, less those of the last launch that the L2 cache has."""
        return 1e6 * max(nbytes - kept, 0) / (0.92 * self.memory)

    def kept(self, nbytes: float) -> float:
        """Return how much of the last launch's output is still in the L2 cache."""
        return nbytes if nbytes < 0.5 * self.l2 else 0.2 * self.l2


GPUS = (Gpu("H100", 3.0e12, 50e6), Gpu("H200", 4.3e12, 60e6))


class Program(NamedTuple):
    """Clocks of one program of a launch on each resource, the bytes that it reads, and how many share a processor."""

    tensor: float
    issue: float
    shared: float
    latency: float
    read: float
    resident: int


def dense(gpu: Gpu, m: int, n: int, k: int, *, in_8_bits: bool = False, out: int = 2) -> float:
    """Return the microseconds of an (m, k) by (n, k) product of cuBLAS, or of ours in 8 bits, in its best tile."""
    rate, size = (1.9 * 0.72, 1) if in_8_bits else (0.89, 2)
    tiles = {(128, 256): 1.0, (256, 128): 1.0, (128, 192): 1.03, (192, 128): 1.03, (128, 128): 1.10, (64, 256): 1.2}
    waves = (
        ceil(ceil(m / rows) * ceil(n / columns) / MULTIPROCESSORS) * MULTIPROCESSORS * rows * columns * loss
        for (rows, columns), loss in tiles.items()
    )
    product = 1e6 * 2 * k * min(waves) / (PRODUCTS_RATE * rate)
    return max(product, gpu.moved(size * k * (m + n) + out * m * n, gpu.kept(size * m * k))) + LAUNCH


def launch(gpu: Gpu, programs: float, program: Program, moved: float, kept: float) -> float:
    """Return the microseconds of a launch of so many programs."""
    tensor, read = program.tensor / SUSTAINED, program.read / L2_PORT
    alone = program.latency + max(tensor, program.shared, read) + 1.25 * program.issue
    clocks = max(tensor, program.issue, program.shared, read, alone / program.resident)
    waves = programs / MULTIPROCESSORS / program.resident
    whole, part = floor(waves), waves - floor(waves)
    last = max(alone, clocks * ceil(part * program.resident)) if part else 0
    times = (whole * clocks * program.resident + last) / CLOCK * 1e6, programs * program.read / L2_RATE * 1e6
    # No resource is used to a launch's end while another one starts it.
    *_, second, worst = sorted((*times, gpu.moved(moved, kept)))
    return worst + 0.15 * second + LAUNCH


def factor(gpu: Gpu, m: int, n: int, k: int, issue: float, moved: float, kept: float) -> float:
    """Return the microseconds of a factor of n by k blocks: 128 columns a program, two of them, or up to 256, one."""
    tried = []
    for columns, resident in ((128, 2), (256 if n > 192 else 192 if n > 128 else 128, 1)):
        pieces = 3 if columns == 192 else 1
        shared = (2 * (64 * pieces + columns) * 2 * k + (128 + columns) * k * 2 + 128 * columns * 4) / 128
        program = Program(
            128 * columns * k / MAC, issue * columns / 128, shared, 1700, (128 + columns) * k * 2, resident
        )
        tried.append(launch(gpu, ceil(m / 128) * BLOCKS * ceil(n / columns), program, moved, kept))
    return min(tried)


def triton_mlp(gpu: Gpu, m: int, width: int, hidden: int) -> tuple[float, float, float, float]:
    """Return the microseconds of a Monarch MLP's four launches."""
    p, s, ends, middle = width // BLOCKS, hidden // BLOCKS, m * width * 2, m * hidden * 2

    def issue(k: int, epilogue: int) -> float:
        return epilogue + 96 * (k // 64 - 1)

    def last(columns: int, resident: int, epilogue: float) -> float:
        shared = (4 * 2 * (64 + columns) * 2 * p + 128 * 4 * columns * 4) / 128
        read = 4 * (128 + columns) * p * 2
        program = Program(128 * 4 * columns * p / MAC, epilogue, shared, 1700, read, resident)
        return launch(gpu, ceil(m / 128) * ceil(p / columns), program, 2 * ends, gpu.kept(ends))

    return (
        factor(gpu, m, p, p, issue(p, 560), 2 * ends, gpu.kept(ends)),
        factor(gpu, m, s, p, issue(p, 1736), ends + middle, gpu.kept(ends)),
        factor(gpu, m, p, s, issue(s, 560), ends + middle, gpu.kept(middle)),
        min(last(64, 1, 3152.0), last(32, 2, 1552.0)),
    )


def inner_mlp(gpu: Gpu, m: int, width: int, hidden: int, tiles: int) -> float:
    """Return the microseconds of an MLP whose inner half is one launch, of so many tiles of 64 rows a program."""
    first, _, _, last = triton_mlp(gpu, m, width, hidden)
    p, chunks, ends, count = width // BLOCKS, hidden // 4 // 64, m * width * 2, 64 * tiles
    read = count * width * 2 + 4 * 64 * p * chunks
    shared = (tiles * chunks * (12 * 4096 + 4 * 10240 + 8192) * p / 192 + read) / 128
    tensor = max(tiles * chunks * 2 * 64 * 64 * p / MAC, SUSTAINED * 1.08 * shared)
    inner = launch(gpu, ceil(m / count) * 4, Program(tensor, 1800, 0, 2200, read, 1), 2 * ends, gpu.kept(ends))
    return first + inner + last


def native_mlp(gpu: Gpu, m: int, width: int, hidden: int) -> float:
    """Return the microseconds of the fused kernel in CUDA, half of whose time tensor cores wait."""
    waves = ceil(m / 64 / MULTIPROCESSORS) * MULTIPROCESSORS * 64 / m
    rate = MMA_SYNC * MAC * SUSTAINED / 0.86 * MULTIPROCESSORS * CLOCK
    return max(1e6 * m * width * (width + hidden) * waves / rate, gpu.moved(4 * m * width)) + 3.5


def attention(gpu: Gpu, batch: int, heads: int, tokens: int, *, ours: bool) -> float:
    """Return the microseconds of our kernel, or of FlashAttention-2, which pads tokens to tiles of 128."""
    pad, of_products = (16, 0.70) if ours else (128, 0.62)
    padded = ceil(tokens / pad) * pad
    product = 1e6 * 4 * batch * heads * padded**2 * 64 / (MMA_SYNC * of_products * PRODUCTS_RATE)
    tensors = 8 * batch * tokens * heads * 64
    return max(product, gpu.moved(tensors, gpu.kept(0.75 * tensors))) + LAUNCH


@dataclass(frozen=True)
class Way:
    """How a forward is computed: which layers are Monarch, and what else is ours."""

    fused: bool = True
    mlp: bool = False
    linears: bool = False
    in_8_bits: bool = False
    tokens: bool = False

    def block(self, gpu: Gpu, batch: int, width: int, before: int, behind: int) -> float:
        """Return the microseconds of a block with so many tokens in its attention and in its MLP."""
        m, behind_m, bits = batch * before, batch * behind, self.in_8_bits
        first, *_, last = triton_mlp(gpu, m, width, 4 * width)
        us = attention(gpu, batch, width // 64, before, ours=self.fused)
        for out in (3 * width, width):
            monarch = first + last * (0.35 + 0.65 * out / width)
            us += monarch if self.linears else dense(gpu, m, out, width, in_8_bits=bits)
        if self.mlp:
            us += min(us for _, us in monarch_mlps(gpu, behind_m, width, 4 * width))
        else:
            us += dense(gpu, behind_m, 4 * width, width, in_8_bits=bits, out=1 if bits else 2)
            us += dense(gpu, behind_m, width, 4 * width, in_8_bits=bits)
        passes, values = (4 if self.fused else 5), 2 * m * width
        norm = gpu.moved(values * passes, gpu.kept(values) * (passes - 1)) + LAUNCH + 1e6 * values * passes / L2_RATE
        return us + 2 * norm

    def forward(self, gpu: Gpu, batch: int, width: int) -> float:
        """Return the microseconds of a ViT of that width: its blocks, patch embedding and head."""
        us, before = dense(gpu, 196 * batch, width, 768) + 3 + 2 * gpu.moved(4 * 196 * batch * width), TOKENS
        for block in range(DEPTH):
            merges = self.tokens and block >= 3 and block % 2 and block < DEPTH - 1
            behind = before - round(MERGED * (before - 1)) if merges else before
            us += self.block(gpu, batch, width, before, behind) + MERGE_US * bool(merges)
            before = behind
        return us


WAYS = {
    "dense": Way(fused=False),
    "fused mlp": Way(mlp=True),
    "fused mlp+qkv+proj": Way(mlp=True, linears=True),
    "tokens": Way(tokens=True),
    "8 bits": Way(in_8_bits=True),
    "tokens, 8 bits": Way(tokens=True, in_8_bits=True),
}


def monarch_mlps(gpu: Gpu, m: int, width: int, hidden: int) -> Iterator[tuple[str, float]]:
    """Yield the candidates for a Monarch MLP of 4 blocks and their microseconds."""
    yield "triton_mlp", sum(triton_mlp(gpu, m, width, hidden))
    if width % 256:
        yield "native_mlp", native_mlp(gpu, m, width, hidden)
    else:
        yield from ((f"gluon_mlp:{tile}", inner_mlp(gpu, m, width, hidden, 2 + tile)) for tile in (0, 1))


FORWARDS = ("forward", "levers")
"""The sections of forwards with Monarch layers, and with what else makes them cheaper."""

Row = tuple[str, str, int, str, float]
"""Section, shape, batch, candidate and microseconds; candidates follow the peer that they are compared with."""


def modelled(gpu: Gpu) -> Iterator[Row]:
    """Yield all rows."""
    for name in GOAL_SHAPES:
        (width, hidden, *_), (heads, _, tokens) = MLP_SHAPES[name], ATTENTION_SHAPES[name]
        for batch in GOAL_BATCHES:
            m = batch * TOKENS
            yield "mlp", name, batch, "dense", dense(gpu, m, hidden, width) + dense(gpu, m, width, hidden)
            yield from (("mlp", name, batch, *row) for row in monarch_mlps(gpu, m, width, hidden))
            for peer, ours in (("SDPA flash", False), ("native_attention", True)):
                yield "attention", name, batch, peer, attention(gpu, batch, heads, tokens, ours=ours)
    for name, product in PRODUCTS.items():
        for batch in GOAL_BATCHES if name.startswith("ViT") else ():
            shape, out = (batch * TOKENS, product.out, product.width), 1 if product.requantized else 2
            yield "quantized", name, batch, "16 bits", dense(gpu, *shape)
            yield "quantized", name, batch, "int8, triton_quantized", dense(gpu, *shape, in_8_bits=True, out=out)
    for arch, width in ((VIT_B[0], 768), (VIT_S[0], 384)):
        for batch in (1, *GOAL_BATCHES):
            for name, way in WAYS.items():
                yield FORWARDS[name in LEVERS], arch, batch, name, way.forward(gpu, batch, width)


def measured(journal: Sequence[Record], row: Row) -> float | None:
    """Return the microseconds of a candidate's fastest tile or, of a peer, its best form; None where none was timed."""
    section, what, batch, name, _ = row
    called = re.compile(re.escape(name) + "(:| |, torch|$)")
    sections = FORWARDS if section in FORWARDS else (section,)
    there = (r for r in journal if r["section"] in sections and (r.get("what"), r.get("batch")) == (what, batch))
    best = fastest(r for r in there if called.match(r["candidate"]))
    return None if best is None else float(best["us"])


def main(argv: Sequence[str]) -> None:
    """Print the rows of each card, and those of a journal of `bench.gpu` beside them."""
    if len(argv) > 1 or any(name.startswith("-") for name in argv):
        raise SystemExit(__doc__)
    journal = [row for path in argv for row in rows(read(Path(path)))]
    peers = ("dense", "SDPA flash", "16 bits")
    print(f"{'':63}{GPUS[0].name} modelled{'':6}{GPUS[1].name} modelled{'':11}{'measured' * bool(journal)}".rstrip())
    over: list[float | None] = []
    for row, other in zip(modelled(GPUS[0]), modelled(GPUS[1]), strict=True):
        us = [row[4], other[4], measured(journal, row)]
        over = us if row[3] in peers else over
        cells = (f"{t:9.0f} us {o / t:5.2f}x" if t and o else f"{'-':>18}" for t, o in zip(us, over, strict=True))
        print(f"{row[0]:10}{row[1]:23}{row[2]:4} {row[3]:24}", *(cells if journal else list(cells)[:2]))
    dense_rates = (f"{name} {128e6 / WAYS['dense'].forward(GPUS[1], 128, width):.0f}" for name, width in SIZES)
    slow, fast = (CORES * 1000 / ms for ms in reversed(DECODE_MS))
    print(f"images a second, H200, dense, batch 128: {', '.join(dense_rates)};", end=" ")
    print(f"{CORES} cores decode {slow:.0f} to {fast:.0f} JPEGs")


SIZES = (("ViT-B", 768), ("ViT-S", 384))

if __name__ == "__main__":
    main(sys.argv[1:])
