"""CompressOptions: the arguments and options of `milkweed compress`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..bundle_args import bundle_path
from ..options import (
    DeviceOption,
    Force,
    Gating,
    Int8Limit,
    Json,
    Layers,
    Out,
    Plot,
    Seed,
    Threads,
    Workers,
    decimal_option,
    number_option,
    storage_option,
    text_option,
)

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a bundle; with --images also a checkpoint, timm:NAME or hf://ORG/REPO, as `milkweed import`.",
        show_default=False,
        parser=bundle_path,
    ),
]

HEADINGS = {
    "--images": "The search, by photographs alone; what follows is manual mode",
    "--layers": "What becomes of which layers",
    "--budget": "Searching the best structure of each layer (needs images)",
    "--calibration": "Fitting the layers to images",
    "--recover": "Training the result to answer as the dense model does",
    "--seed": "The run",
}
"""The heading of each part of the help, by the option that begins the part."""


@dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """The values from the command line; the fields are in the order of the help."""

    bundle: ModelArgument
    out: Out
    images: Annotated[
        Path | None,
        text_option("DIR", "Folder of 32 photographs or more: search by them. Labels are used where given."),
    ] = None
    speedup: Annotated[float | None, decimal_option("Target: minimum speedup over the dense model in float32.")] = None
    target_ms: Annotated[float | None, decimal_option("Target: maximum latency, ms/image.")] = None
    max_drop: Annotated[
        float | None, decimal_option("Target: points of top-1 lost at most, by the 95 % interval; 2 if none is given.")
    ] = None
    size: Annotated[str | None, text_option("SIZE", "Target: maximum size of the bundle, such as 6MB.")] = None
    batch: Annotated[str, text_option("LIST", "Batch sizes at which a target of speed has to be met.")] = "1,8"
    backend: Annotated[
        str, text_option("LIST", "torch, onnxruntime, openvino: what may compute the result. All that are installed.")
    ] = ""
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep the float weights too, for GPUs and to train on from.")
    ] = False
    discard_search: Annotated[
        bool, typer.Option("--discard-search", help="Remove what was measured, with which another target goes on.")
    ] = False
    distil: Annotated[bool, typer.Option(help="Train what is chosen to answer as the dense model, for minutes.")] = True
    layers: Layers = "mlp"
    structure: Annotated[str, text_option("KIND", "monarch, lowrank, blockdiag or pixelfly (not with --budget).")] = (
        "monarch"
    )
    nblocks: Annotated[int, number_option("Blocks of each Monarch factor (not with --budget).")] = 4
    rank: Annotated[
        int | None, number_option("Rank; of monarch that of each sub-block. Not given: the Monarch paper's.")
    ] = None
    block_size: Annotated[int, number_option("pixelfly: side of a block.")] = 32
    butterfly_size: Annotated[int, number_option("pixelfly: side of the butterfly's mask.")] = 16
    n_factors: Annotated[int, number_option("pixelfly: butterfly factors beside the diagonal.", least=0)] = 2
    gating: Gating = True
    shuffle: Annotated[bool, typer.Option("--shuffle", help="blockdiag: shuffle the inputs.")] = False
    budget: Annotated[
        float | None, decimal_option("Share of the dense layers' cost to spend, 0 to 1, such as 0.65.")
    ] = None
    cost: Annotated[
        str,
        text_option("UNIT", "What the budget counts: parameters or macs (multiply-accumulates)."),
    ] = "parameters"
    block_counts: Annotated[str, text_option("LIST", "Numbers of blocks to choose from; 1 is low rank.")] = "1,2,4,8"
    refinements: Annotated[
        int | None, number_option("Times to measure again and share the budget out anew; 10 if not given.", least=0)
    ] = None
    calibration: Annotated[
        Path | None, text_option("DIR", "Folder of images, no labels needed; a few hundred are enough.")
    ] = None
    calibration_images: Annotated[int, number_option("Images used of them at most, evenly spaced.")] = 512
    recover: Annotated[Path | None, text_option("DIR", "Folder of images to train on; no labels needed.")] = None
    recover_epochs: Annotated[int | None, number_option("Passes over the images.")] = None
    recover_block_epochs: Annotated[
        int | None, number_option("Passes block by block, before those of the whole model.", least=0)
    ] = None
    recover_lr: Annotated[float | None, decimal_option("Learning rate.")] = None
    recover_batch_size: Annotated[int | None, number_option("Images of one step.")] = None
    recover_trained: Annotated[str | None, text_option("WHAT", "structured (with norms and biases) or all.")] = None
    recover_amp: Annotated[
        str | None,
        text_option("DTYPE", "none, bfloat16 or float16; not given: bfloat16 where the device computes in it."),
    ] = None
    label_weight: Annotated[
        float | None, decimal_option("Weight of the labels beside the dense model's answers, 0 to 1; needs labels.")
    ] = None
    storage: Annotated[
        str, storage_option("How the file holds the result's weights: float32, bfloat16, float16 or int8; see convert.")
    ] = "float32"
    int8_limit: Int8Limit = None
    seed: Seed = 0
    workers: Workers = 0
    threads: Threads = None
    device: DeviceOption = None
    plot: Plot = None
    force: Force = False
    json: Json = False


OF_SEARCH = frozenset(
    {
        "images",
        "speedup",
        "target_ms",
        "max_drop",
        "size",
        "batch",
        "backend",
        "keep_weights",
        "discard_search",
        "distil",
    }
)
"""The options of the search."""

OF_BOTH = frozenset({"bundle", "out", "threads", "plot", "force", "json"})
"""The options of the search and of manual mode."""
