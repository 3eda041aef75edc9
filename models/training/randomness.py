"""Random choices as functions of where a run is, so that a run which goes on needs no generator's state."""

import hashlib

import torch


def seed_of(*place: int) -> int:
    """A seed of 63 bits for a place such as (seed, step, rank); neighbouring places have unrelated seeds."""
    text = ",".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_step(seed: int, step: int, rank: int) -> None:
    """Set torch's generators (dropout, drop path, mixing) for one step of one process."""
    torch.manual_seed(seed_of(seed, step, rank))
