"""Tiles of the Triton kernels: a few variants for the tuner, and how one is fitted to a product and a device.

By the roofline, reads from the second-level cache limit a launch, so wide tiles come first: a program of BM rows and n
columns reads BM + n numbers for every BM * n multiplications.
"""

import os
from dataclasses import dataclass, replace
from functools import cache

import torch

ITEM_BYTES = 2
"""Bytes of a number of the dtypes that the kernels take."""

SMALLEST_DEPTH = 16
DEPTHS = (64, 32, SMALLEST_DEPTH)
ROWS_OF_LOW_TILES = 4096
"""More rows than this fill the GPU with tiles of 128 rows, which read weights half as often as tiles of 64."""


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of a GPU that tiles depend on.

    Args:
        capability: (major, minor).
        shared_bytes: shared memory that a program may have.
        pdl: launches are programmatic dependent: the next one is set up while this one ends. Hopper and later do so,
            unless MILKWEED_PDL=0 says otherwise.
    """

    capability: tuple[int, int]
    shared_bytes: int
    pdl: bool = False

    @property
    def accumulates_apart(self) -> bool:
        """Whether tensor cores read both operands from shared memory (wgmma, tcgen05), which leaves registers free."""
        return self.capability[0] in (9, 10)


@dataclass(frozen=True)
class Variant:
    """A family of tiles.

    Args:
        rows: rows of a tile, BM.
        columns: most columns of a program, over all its parts or blocks.
        warps: warps of a program.
        resident: programs that should share a multiprocessor.
        tma: the tensor memory accelerator loads tiles; Hopper and later have it.
    """

    rows: int
    columns: int
    warps: int
    resident: int
    tma: bool = False


WIDE = Variant(128, 256, 8, 1)
SQUARE = Variant(128, 128, 4, 2)
LOW = Variant(64, 128, 4, 2)
SMALL = Variant(32, 64, 4, 3)

INTERLEAVED_ON_HOPPER = Variant(64, 256, 4, 2)
"""What Hopper takes for tiles of 128 rows of an interleaved product. Two programs share a multiprocessor, so that one
loads or stores while the other multiplies, and each block's columns are as many as without them, 64 of four blocks:
with fewer, shared memory would limit wgmma."""

VARIANTS = (LOW, WIDE, SQUARE, SMALL, replace(WIDE, tma=True), replace(SQUARE, tma=True))
"""The variant of each tile number. Where nothing is measured, the first that does not refuse the rows is taken."""


@dataclass(frozen=True)
class Product:
    """One launch: every block of x (rows, blocks*p) times its block of w (blocks, n, p)."""

    rows: int
    blocks: int
    n: int
    p: int
    interleaved: bool
    """A program computes all blocks, instead of one."""
    tma: bool
    """The tensor memory accelerator can load its tiles: rows of 16 bytes, and none reaches into the next block."""


@dataclass(frozen=True)
class Tile:
    """How a launch is split: BM rows, BN + REST columns, BK deep; the names are those of the kernels."""

    BM: int
    BN: int
    REST: int
    BK: int
    warps: int
    stages: int
    tma: bool
    pdl: bool
    """It is launched while the launch before it ends."""

    def programs(self, product: Product) -> int:
        """Return the number of programs of the launch."""
        columns = -(-product.n // (self.BN + self.REST))
        return -(-product.rows // self.BM) * columns * (1 if product.interleaved else product.blocks)


@cache
def device_properties(device: torch.device) -> DeviceProperties:
    """Read a CUDA device's properties."""
    properties = torch.cuda.get_device_properties(device)
    pdl = properties.major >= 9 and os.environ.get("MILKWEED_PDL") != "0"
    return DeviceProperties((properties.major, properties.minor), properties.shared_memory_per_block_optin, pdl)


def tile_refusal(tile: int, rows: int, capability: tuple[int, int]) -> str | None:
    """Return why a variant does not suit so many rows there, whatever the layer; None if it does."""
    if not 0 <= tile < len(VARIANTS):
        return f"tile {tile}: there are {len(VARIANTS)}"
    variant = VARIANTS[tile]
    if variant.tma and capability[0] < 9:
        return f"compute capability {capability[0]}.{capability[1]} has no tensor memory accelerator"
    if capability[0] == 9 and variant.rows >= WIDE.rows and not variant.tma:
        return f"tiles of {variant.rows} rows are loaded by the tensor memory accelerator here"
    too_low = rows > ROWS_OF_LOW_TILES and variant.rows < WIDE.rows
    if too_low or rows < variant.rows > SMALL.rows:
        return f"tiles of {variant.rows} rows are not for {rows} rows"
    return None


def choose_tile(variant: Variant, product: Product, device: DeviceProperties) -> Tile:
    """Return the variant's tile for a product: the columns of least cost, and the depth that fits shared memory."""
    tma = variant.tma and product.tma
    if product.interleaved and device.capability[0] == 9 and variant.rows >= WIDE.rows:
        variant = INTERLEAVED_ON_HOPPER
    warps, BN, REST = _columns(variant, product, device)
    across = product.blocks if product.interleaved else 1
    operands = across * (variant.rows + BN + REST)  # rows of x and w that a step multiplies
    budget = device.shared_bytes // variant.resident - 1024
    depths = [BK for BK in DEPTHS if not tma or product.p % BK == 0]
    fitting = [BK for BK in depths if 2 * operands * BK * ITEM_BYTES <= budget]
    # A last step that is partly beyond p costs as much as a whole one, and each step has a small cost of its own.
    BK = min(fitting or depths[-1:], key=lambda BK: (-(-product.p // BK) * (BK + 8), -BK))
    steps = -(-product.p // BK)
    buffers = max(2, min(4, steps, budget // (operands * BK * ITEM_BYTES)))
    # Without wgmma, one of the steps that num_stages counts is in registers.
    return Tile(variant.rows, BN, REST, BK, warps, buffers + (not device.accumulates_apart), tma, device.pdl)


def _columns(variant: Variant, product: Product, device: DeviceProperties) -> tuple[int, int, int]:
    """Return the warps, and the BN and REST of least cost: numbers read plus half of the multiplied columns."""
    warps, limit = variant.warps, _accumulators(product, device)
    if warps < 8 and variant.rows * variant.columns > limit * 32 * warps:
        warps *= 2
    most = min(variant.columns, limit * 32 * warps // variant.rows)
    if product.interleaved:
        options = [(BN, 0) for BN in (128, 64, 32, 16) if BN * product.blocks <= most] or [(16, 0)]
    else:
        options = [(BN, 0) for BN in (256, 128, 64, 32, 16) if most >= BN]
        options += [(128, 64)] if most >= 192 else []

    def cost(option: tuple[int, int]) -> float:
        width = sum(option)
        programs = -(-product.n // width)
        return programs * variant.rows + programs * width / 2

    return (warps, *min(options, key=cost))


def _accumulators(product: Product, device: DeviceProperties) -> int:
    """Return how many sums a thread may hold without spilled registers on that architecture (a test compiles them)."""
    if device.capability[0] == 9:
        return 128
    if product.interleaved:
        return 64
    return 128 if device.capability[0] == 10 else 96
