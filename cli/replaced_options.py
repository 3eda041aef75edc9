"""Options of earlier versions, and what stands in their place; a command line that has them is told."""

RENAMED = {"--hard-share": "is --label-weight now"}
"""Options that have another name in every other command than compress: the end of a sentence about the option."""

_STRUCTURE = "is a line of the recipe's file now (structure), see --recipe"
_DISTILLATION = "is a line of the recipe's file now (distillation), see --recipe"
_IMAGES = "is --images DIR now"
_CONVERT = "is of milkweed convert now"
_GONE = "is gone: a search and --recipe choose it themselves"
_PIXELFLY = "is gone: a dense model becomes no Pixelfly one, milkweed train makes them"

REPLACED = {
    **dict.fromkeys(("--layers", "--structure", "--nblocks", "--rank", "--budget", "--cost"), _STRUCTURE),
    **dict.fromkeys(("--block-size", "--butterfly-size", "--n-factors", "--gating", "--no-gating"), _PIXELFLY),
    **dict.fromkeys(("--recover-epochs", "--recover-lr", "--recover-batch-size"), _DISTILLATION),
    **dict.fromkeys(("--label-weight", "--hard-share"), _DISTILLATION),
    **dict.fromkeys(("--calibration", "--calibration-images", "--recover"), _IMAGES),
    **dict.fromkeys(("--storage", "--int8-limit"), _CONVERT),
    **dict.fromkeys(("--refinements", "--block-counts", "--recover-block-epochs", "--recover-trained"), _GONE),
    **dict.fromkeys(("--recover-amp", "--seed", "--workers", "--device"), _GONE),
    "--shuffle": _STRUCTURE,
    "--target-ms": "is --latency now",
    "--bytes": "is --size now",
    "--no-distil": "is --minutes 0 now",
    "--distil": "is --minutes N now",
}
"""Options of `milkweed compress`, likewise."""
