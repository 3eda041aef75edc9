"""`milkweed import` makes a bundle of a published checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError
from ..options import Force, Json, json_object, number_option, text_option
from ..output import bundle_line, print_fields, print_json

if TYPE_CHECKING:
    from ...models.importing import ImportReport

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="File (.pth, .pth.tar, .pt, .ckpt, .bin, .safetensors, an index of shards), folder (Hugging Face's or "
        "DeepSpeed's), timm:NAME or hf://ORG/REPO[@REVISION].",
    ),
]
NewBundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the new bundle.")]
Arch = Annotated[
    str | None, text_option("NAME", "Architecture, see `milkweed models`; recognised by its keys if not given.")
]
ArchArgs = Annotated[
    str | None, text_option("JSON|FILE", "Arguments of the architecture: a JSON object or a file of one.")
]
Preprocess = Annotated[
    str | None,
    text_option(
        "JSON|FILE", "How images become input: size, crop_pct, interpolation, mean, std; as published if not given."
    ),
]
DecodeScale = Annotated[
    Literal["exact", "fast"] | None,
    typer.Option(help="fast: large JPEGs are decoded at 1/2, 1/4 or 1/8, in half the time, for nearly equal answers."),
]
Labels = Annotated[Path | None, text_option("FILE", "Class labels: .tsv (index, id, label), .json, or one a line.")]
Classes = Annotated[
    int | None,
    number_option("Number of classes; counted in the checkpoint if not given. 0: none, for its embedding.", least=0),
]
Projection = Annotated[
    bool, typer.Option("--projection", help="The classifier is a projection (CLIP): what it gives is the embedding.")
]


def import_checkpoint(
    checkpoint: Checkpoint,
    bundle: NewBundle,
    arch: Arch = None,
    labels: Labels = None,
    num_classes: Classes = None,
    projection: Projection = False,
    arch_args: ArchArgs = None,
    preprocess: Preprocess = None,
    jpeg_scaling: DecodeScale = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a bundle of a published checkpoint.

    A bundle is a folder of weights, architecture and labels, which all other commands take. Files are read as data:
    nothing in them is run. Nothing is fetched but what timm:NAME or hf://ORG/REPO
    names.

    \b
    Example:
      milkweed import deit_tiny_patch16_224.pth ./deit \\
        --arch deit_tiny_patch16_224 --labels imagenet.tsv
      milkweed import timm:vit_tiny_patch16_224 ./vit
    """
    check_free(bundle, force)
    further = json_object("--arch-args", arch_args)
    prepared = json_object("--preprocess", preprocess) | ({"jpeg_scaling": jpeg_scaling} if jpeg_scaling else {})
    from ...models import import_checkpoint as make_bundle
    from ...models import read_labels
    from ...models.architectures.registry import default_preprocess

    try:
        if arch is not None:
            default_preprocess(arch)
    except ValueError as error:
        raise CommandError(f"--arch: {error}", WRONG_USAGE) from error
    report = make_bundle(
        checkpoint,
        arch,
        bundle,
        num_classes=num_classes,
        projects=projection,
        labels=read_labels(labels) if labels else None,
        preprocess=prepared,
        arch_args=further,
        overwrite=force,
    )
    if json:
        print_json(_document(bundle, report))
    else:
        _print(bundle, report)


def _document(bundle: Path, report: "ImportReport") -> dict[str, Any]:
    config = report.config
    return {
        "bundle": str(bundle),
        "version": config.version,
        "arch": config.arch,
        "num_classes": config.num_classes,
        "problem_type": config.problem_type,
        "monarch_layers": sum(layer.kind == "monarch" for layer in config.structure.values()),
        "structured_layers": len(config.structure),
        "bytes_on_disk": config.bytes_on_disk,
        "source": dict(config.provenance["source"]),
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
    }


def _print(bundle: Path, report: "ImportReport") -> None:
    config, info = report.config, report.info
    print_fields(
        {
            "bundle": bundle_line(bundle, config),
            "arch": f"{config.arch}, {config.num_classes} {'values of an embedding' if config.embeds else 'classes'}",
            "source": f"{info.file} ({info.container}, sha256 {info.sha256[:12]}...)",
            **{f"note {number}": text for number, text in enumerate(report.notes, 1)},
        }
    )
