"""CompressOptions: the arguments and options of `milkweed compress`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..bundle_args import bundle_path
from ..options import Force, Json, Out, Plot, Threads, decimal_option, text_option

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a bundle; also a checkpoint, timm:NAME or hf://ORG/REPO, as `milkweed import`.",
        show_default=False,
        parser=bundle_path,
    ),
]

HEADINGS = {
    "--images": "What the result has to keep",
    "--try": "How it is searched for",
    "--recipe": "Without a search",
    "--batch": "The run",
}
"""The heading of each part of the help, by the option that begins the part."""


@dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """The values from the command line; the fields are in the order of the help."""

    bundle: ModelArgument
    out: Out
    images: Annotated[Path, text_option("DIR", "Folder of 32 photographs or more. Labels are used where given.")]
    speedup: Annotated[float | None, decimal_option("Minimum speedup over the dense model in float32.")] = None
    latency: Annotated[str | None, text_option("TIME", "Maximum latency of an image, such as 8ms.")] = None
    max_drop: Annotated[
        float | None, decimal_option("Points of top-1 lost at most, by the 95 % interval; 2 if no target is given.")
    ] = None
    size: Annotated[str | None, text_option("SIZE", "Maximum size of the bundle, such as 6MB.")] = None
    methods: Annotated[
        str,
        text_option("LIST", "monarch, tokens, widths, int8: what is tried. All that the model takes.", "--try"),
    ] = ""
    minutes: Annotated[
        float | None, decimal_option("Train for as long as fits into so many minutes; 0 does not train.")
    ] = None
    recipe: Annotated[
        Path | None, text_option("FILE", "Do what a file says (JSON; `milkweed inspect OUT --recipe` prints one).")
    ] = None
    batch: Annotated[str, text_option("LIST", "Batch sizes at which a target of speed has to be met.")] = "1,8"
    backend: Annotated[
        str,
        text_option("LIST", "milkweed, torch, onnxruntime, openvino: what may compute the result. All installed."),
    ] = ""
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep the float weights too, for GPUs and to train on from.")
    ] = False
    discard_search: Annotated[
        bool, typer.Option("--discard-search", help="Remove what was measured, with which another target goes on.")
    ] = False
    threads: Threads = None
    plot: Plot = None
    force: Force = False
    json: Json = False
