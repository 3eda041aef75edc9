"""Options of `milkweed compress`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import number_option, storage_option

Structure = Annotated[
    str, typer.Option("--structure", metavar="KIND", help="monarch, lowrank, blockdiag or pixelfly; without --budget.")
]
Blocks = Annotated[int, number_option("--nblocks", "Blocks of each factor; without --budget.")]
Rank = Annotated[int | None, number_option("--rank", "Rank (monarch: of each sub-block, as the paper's if not given).")]
BlockSize = Annotated[int, number_option("--block-size", "Of pixelfly: side of a block.")]
ButterflySize = Annotated[int, number_option("--butterfly-size", "Of pixelfly: side of the butterfly's mask.")]
Factors = Annotated[int, number_option("--n-factors", "Of pixelfly: butterfly factors beside the diagonal.", least=0)]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Of blockdiag: shuffle the inputs.")]
Budget = Annotated[
    float | None,
    number_option(
        "--budget",
        "Share of what the layers cost dense, as 0.65: the best structure for each is searched. Needs images.",
        least=0,
        kind=float,
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        "--cost", metavar="UNIT", help="Of the budget: parameters, macs, or latency (measured on this machine)."
    ),
]
BlockCounts = Annotated[
    str, typer.Option("--block-counts", metavar="LIST", help="Block counts that --budget chooses from; 1 is low rank.")
]
Refinements = Annotated[
    int | None, number_option("--refinements", "Times that --budget measures again and shares out anew.", least=0)
]
CalibrationFolder = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="DIR", help="Images to fit the layers to, no labels needed; a few hundred."),
]
CalibrationImages = Annotated[int, number_option("--calibration-images", "Of them at most, evenly spaced.")]
Storage = Annotated[
    str, storage_option("How the file holds the result's weights: float32, bfloat16, float16 or int8; see convert.")
]
Recover = Annotated[
    Path | None,
    typer.Option("--recover", metavar="DIR", help="Images to train on afterwards, to answer as the dense model does."),
]
RecoverEpochs = Annotated[int | None, number_option("--recover-epochs", "Passes over them.")]
RecoverBlockEpochs = Annotated[
    int | None, number_option("--recover-block-epochs", "Passes block by block, before the others.", least=0)
]
RecoverLr = Annotated[
    float | None, number_option("--recover-lr", "Learning rate of the recovery.", least=0, kind=float)
]
RecoverBatch = Annotated[int | None, number_option("--recover-batch-size", "Images of a step of the recovery.")]
RecoverTrained = Annotated[
    str | None,
    typer.Option("--recover-trained", metavar="WHAT", help="structured (and norms, biases) or all parameters."),
]
RecoverAmp = Annotated[
    str | None,
    typer.Option(
        "--recover-amp",
        metavar="DTYPE",
        help="Autocast of the recovery: none, bfloat16, float16; bfloat16 where the device computes in it.",
    ),
]
HardShare = Annotated[
    float | None,
    number_option(
        "--hard-share", "Weight of the images' own classes in the recovery, 0 to 1; needs labels.", least=0, kind=float
    ),
]
