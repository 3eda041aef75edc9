"""Fuzzes the resize: Pillow's bits for every size, crop and filter, on every instruction set of this CPU."""

import random
from functools import partial
from unittest.mock import patch

import numpy as np
from PIL import Image

from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import resize_entry
from milkweed.kernels.images import resize as resizing
from milkweed.kernels.images.resize import CroppedAxis

from .finding import Finding


def resize(draw: random.Random) -> None:
    lengths = [draw.choice((draw.randrange(1, 20), draw.randrange(1, 700))) for _ in range(4)]
    width, height, across, down = lengths
    levels = np.random.default_rng(draw.randrange(1 << 32)).integers(0, 256, (height, width, 3)).astype(np.uint8)
    if draw.random() < 0.5:  # black and white overshoot most
        levels = np.where(levels > 127, 255, 0).astype(np.uint8)
    left, top = draw.randrange(across), draw.randrange(down)
    right, bottom = draw.randrange(left, across) + 1, draw.randrange(top, down) + 1
    bilinear, isa = draw.random() < 0.5, draw.choice(supported_sets()).name
    how = Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC
    whole = Image.fromarray(levels).resize((across, height), how).resize((across, down), how)
    spans = CroppedAxis(width, across, left, right - left), CroppedAxis(height, down, top, bottom - top)
    with patch.object(resizing, "resize_entry", partial(resize_entry, isa)):
        found = resizing.resize(levels, *spans, bilinear=bilinear)[..., :3]
    if not np.array_equal(found, np.asarray(whole)[top:bottom, left:right]):
        raise Finding(f"other bits than Pillow's: {isa}, bilinear {bilinear}, {spans}", levels.tobytes())


TARGETS = {"resize": resize} if resizing.resize_refusal() is None else {}
