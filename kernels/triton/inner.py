"""What the inner half of an MLP on Hopper, `inner_mlp`, is for, and its tiles."""

from dataclasses import dataclass

import torch

from ..blocked import VECTOR, BlockedMonarch
from ..shapes import MonarchShape
from .tiles import ITEM_BYTES, DeviceProperties

NBLOCKS, SIDE = 4, 64
"""The blocks and the tiles' rows and columns of `inner_mlp`."""

ROWS = (128, 192)
"""Rows of a program, the number of its warpgroups times 64, by the number of the tile."""

MAX_OUTPUTS = {128: 256, 192: 192}
"""How many sums of a row a warpgroup of that tile has registers for (a test compiles them)."""

W_STAGES = 2


@dataclass(frozen=True)
class InnerShape:
    """Numbers of the inner half of an MLP, in the layout of `sort_mlp`.

    Args:
        nblocks: output blocks of fc1, input and output blocks of fc2.
        read: features that a block of fc1's second factor reads.
        hidden: hidden features from one of these blocks to one of fc2's first factor.
        outputs: features that a block of fc2's first factor gives.
    """

    nblocks: tuple[int, int, int]
    read: int
    hidden: int
    outputs: int

    @classmethod
    def of(cls, fc1: BlockedMonarch, fc2: BlockedMonarch) -> "InnerShape":
        """Read the numbers of two layers from `sort_mlp`."""
        nblocks = (fc1.J, fc2.K, fc2.J)
        return cls(nblocks, fc1.w2.shape[2], fc1.w2.shape[1] // max(1, fc2.K), fc2.w1.shape[1])

    @classmethod
    def sorted(cls, fc1: MonarchShape, fc2: MonarchShape, hidden_features: int) -> "InnerShape":
        """Return the numbers that two layers will have; `hidden` is 0 where hidden features do not fill all blocks."""
        groups = fc1.J * fc2.K
        full = hidden_features == fc1.out_extended == fc2.in_extended and hidden_features % groups == 0
        read, outputs = (
            blocks * _padded(-(-q // J)) for blocks, q, J in ((fc1.K, fc1.q, fc1.J), (fc2.J, fc2.q, fc2.J))
        )
        return cls((fc1.J, fc2.K, fc2.J), read, _padded(hidden_features // groups) if full else 0, outputs)

    def refusal(self, tile: int) -> str | None:
        """Return why a tile does not suit the shape, on any GPU; None if it does."""
        if not 0 <= tile < len(ROWS):
            return f"inner tile {tile}: there are {len(ROWS)}"
        if self.nblocks != (NBLOCKS,) * 3:
            return f"nblocks {self.nblocks}: the inner half is for {NBLOCKS}"
        blocks = (self.read, self.hidden, self.outputs)
        if any(width % SIDE or not width for width in blocks):
            return f"blocks of {', '.join(map(str, blocks))} features are not multiples of {SIDE}"
        if self.outputs > MAX_OUTPUTS[ROWS[tile]]:
            return f"blocks of {self.outputs} outputs: tiles of {ROWS[tile]} rows take {MAX_OUTPUTS[ROWS[tile]]}"
        return None

    def device_refusal(self, tile: int, rows: int, dtype: torch.dtype, device: DeviceProperties) -> str | None:
        """Return why a tile that suits the shape does not suit the rows or the GPU; None if it does."""
        if dtype != torch.bfloat16:
            return f"dtype {dtype}: the inner half is for bfloat16"
        if device.capability != (9, 0):
            return "compute capability {}.{}: the inner half is for 9.0, Hopper".format(*device.capability)
        if not self.t_stages(tile, device.shared_bytes):
            needed = self.shared_bytes(tile, 1)
            return f"inner tile {tile} needs {needed} bytes of shared memory, the device has {device.shared_bytes}"
        return f"tiles of {ROWS[tile]} rows are not for {rows} rows" if rows < ROWS[tile] else None

    def shared_bytes(self, tile: int, t_stages: int) -> int:
        """Return the shared memory of a program: the stages, hidden activations, scratch for stores, and barriers."""
        weights = W_STAGES * (self.read + self.outputs) * SIDE
        return ITEM_BYTES * (ROWS[tile] * (t_stages * self.read + 2 * SIDE) + weights) + 128

    def t_stages(self, tile: int, shared_bytes: int) -> int:
        """Return how many blocks of t fit the shared memory at once: 2, 1 or 0."""
        return next((stages for stages in (2, 1) if self.shared_bytes(tile, stages) <= shared_bytes), 0)


def _padded(width: int) -> int:
    return -(-width // VECTOR) * VECTOR
