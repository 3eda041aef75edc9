"""Brings a bundle's model into the form it is served in: on a CPU packed, on a GPU fused and tuned for each batch size.

Everything that takes long happens here, while the model loads: no request ever waits for a measurement or a capture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ..models.serving.fused.report import FusionReport
from ..models.serving.pack import prepare_for_inference

GPU_BATCH_SIZE = 64
"""Images of a batch that keep a GPU busy."""


@dataclass(frozen=True)
class ForwardOptions:
    """The settings of the same names; of a CPU the last one alone."""

    fusion: Literal["auto", "off"] = "auto"
    tuning: Literal["auto", "off", "force"] = "auto"
    tuning_cache: str = "auto"
    cuda_graphs: bool = True
    cpu_graphs: bool = True


@dataclass(frozen=True)
class ServingForm:
    """A model as it runs.

    Args:
        model: takes normalised images of the dtype on the device, returns logits.
        report: what became of it where it was fused.
        graph_batch_sizes: the batch buckets to capture CUDA graphs for; none where it is not captured.
    """

    model: nn.Module
    report: FusionReport | None = None
    graph_batch_sizes: tuple[int, ...] = ()


def prepare_model(
    model: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype,
    size: int,
    max_batch_size: int,
    options: ForwardOptions,
    int8_layers: Sequence[str] = (),
) -> ServingForm:
    """The form for a device; `model` as `load_bundle` gives it is used up.

    Args:
        size: side of the model's input, px.
        max_batch_size: images of one batch at most.
        int8_layers: that stay int8 in memory on a CPU. A GPU's kernels take two-byte weights: there all are expanded.
    """
    if device.type != "cuda":
        return ServingForm(prepare_for_inference(model, dtype=dtype, int8_layers=int8_layers))
    # A machine without a GPU pays for none of it, not even in memory.
    from ..models.serving.cuda_graph import batch_buckets
    from ..models.serving.fused.fuse import fuse
    from ..models.serving.fused.tuning import Tuning, open_cache

    batch_sizes = batch_buckets(max_batch_size)
    graphs = batch_sizes if options.cuda_graphs else ()
    if options.fusion == "off":
        return ServingForm(prepare_for_inference(model, dtype=dtype), None, graphs)
    folder = None if options.tuning_cache == "auto" else Path(options.tuning_cache)
    tuning = Tuning(options.tuning, open_cache(device, options.tuning, folder))
    report = fuse(model, device=device, dtype=dtype, image_size=size, batch_sizes=batch_sizes, tuning=tuning)
    torch.cuda.empty_cache()  # what measuring needed and serving does not
    return ServingForm(model, report, graphs)
