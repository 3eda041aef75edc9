"""Options of `milkweed compress`."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import number_option, storage_option

HEADINGS = {
    "--layers": "What becomes of which layers",
    "--budget": "Searching the best structure of each layer (needs images)",
    "--calibration": "Fitting the layers to images",
    "--recover": "Training the result to answer as the dense model does",
    "--seed": "The run",
}
"""By the option that begins a part of the help."""

Structure = Annotated[
    str,
    typer.Option("--structure", metavar="KIND", help="monarch, lowrank, blockdiag or pixelfly (not with --budget)."),
]
Blocks = Annotated[int, number_option("--nblocks", "Blocks of each Monarch factor (not with --budget).")]
Rank = Annotated[
    int | None, number_option("--rank", "Rank; of monarch that of each sub-block. Not given: the Monarch paper's.")
]
BlockSize = Annotated[int, number_option("--block-size", "pixelfly: side of a block.")]
ButterflySize = Annotated[int, number_option("--butterfly-size", "pixelfly: side of the butterfly's mask.")]
Factors = Annotated[int, number_option("--n-factors", "pixelfly: butterfly factors beside the diagonal.", least=0)]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="blockdiag: shuffle the inputs.")]
Budget = Annotated[
    float | None,
    number_option(
        "--budget",
        "Share of the dense layers' cost to spend, 0 to 1, such as 0.65.",
        least=0,
        kind=float,
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        "--cost",
        metavar="UNIT",
        help="What the budget counts: parameters, macs (multiply-accumulates) or latency (measured here).",
    ),
]
BlockCounts = Annotated[
    str, typer.Option("--block-counts", metavar="LIST", help="Numbers of blocks to choose from; 1 is low rank.")
]
Refinements = Annotated[
    int | None,
    number_option("--refinements", "Times to measure again and share the budget out anew; 10 if not given.", least=0),
]
CalibrationFolder = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="DIR", help="Folder of images, no labels needed; a few hundred are enough."),
]
CalibrationImages = Annotated[int, number_option("--calibration-images", "Images used of them at most, evenly spaced.")]
Storage = Annotated[
    str, storage_option("How the file holds the result's weights: float32, bfloat16, float16 or int8; see convert.")
]
Recover = Annotated[
    Path | None,
    typer.Option("--recover", metavar="DIR", help="Folder of images to train on; no labels needed."),
]
RecoverEpochs = Annotated[int | None, number_option("--recover-epochs", "Passes over the images.")]
RecoverBlockEpochs = Annotated[
    int | None,
    number_option("--recover-block-epochs", "Passes block by block, before those of the whole model.", least=0),
]
RecoverLr = Annotated[float | None, number_option("--recover-lr", "Learning rate.", least=0, kind=float)]
RecoverBatch = Annotated[int | None, number_option("--recover-batch-size", "Images of one step.")]
RecoverTrained = Annotated[
    str | None,
    typer.Option("--recover-trained", metavar="WHAT", help="structured (with norms and biases) or all."),
]
RecoverAmp = Annotated[
    str | None,
    typer.Option(
        "--recover-amp",
        metavar="DTYPE",
        help="none, bfloat16 or float16; not given: bfloat16 where the device computes in it.",
    ),
]
HardShare = Annotated[
    float | None,
    number_option("--hard-share", "Weight of the images' own classes, 0 to 1; needs labels.", least=0, kind=float),
]
