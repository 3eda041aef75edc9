"""`milkweed import`: a published checkpoint becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from .bundles import check_free
from .failure import WRONG_USAGE, Failure
from .options import Force, Json, number_option
from .output import megabytes, print_fields, print_json

Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="File: .pth, .pth.tar, .pt, .ckpt, .bin or .safetensors.")
]
Target = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the new bundle.")]
Arch = Annotated[str, typer.Option("--arch", metavar="NAME", help="Architecture; `milkweed models` lists them.")]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", metavar="FILE", help="Class labels: .tsv (index, id, label), .json, or one a line."),
]
Classes = Annotated[
    int | None,
    number_option("--num-classes", "Classes; counted in the checkpoint if not given."),
]


def import_checkpoint(
    checkpoint: Checkpoint,
    bundle: Target,
    arch: Arch,
    labels: Labels = None,
    num_classes: Classes = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a bundle of an original checkpoint.

    The file is read as data: nothing in it is run, and nothing is ever fetched.

    \b
    Example:
      milkweed import deit_tiny_patch16_224.pth ./deit --arch deit_tiny_patch16_224 --labels imagenet.tsv
    """
    check_free(bundle, force)
    from ...models import import_checkpoint as make_bundle
    from ...models import read_labels
    from ...models.registry import default_preprocess

    try:
        default_preprocess(arch)
    except ValueError as error:
        raise Failure(f"--arch: {error}", WRONG_USAGE) from error
    texts = read_labels(labels) if labels else None
    report = make_bundle(checkpoint, arch, bundle, num_classes=num_classes, labels=texts, overwrite=force)
    config, info = report.config, report.info
    if json:
        print_json(
            {
                "bundle": str(bundle),
                "version": config.version,
                "arch": config.arch,
                "num_classes": config.num_classes,
                "monarch_layers": len(config.structure),
                "bytes_on_disk": config.bytes_on_disk,
                "source": dict(config.provenance["source"]),
                "notes": list(report.notes),
                "seconds": round(report.seconds, 3),
            }
        )
        return
    print_fields(
        {
            "bundle": f"{bundle} (version {config.version}, {megabytes(config.bytes_on_disk)})",
            "arch": f"{config.arch}, {config.num_classes} classes",
            "source": f"{info.file} ({info.container}, sha256 {info.sha256[:12]}...)",
            **{f"note {number}": text for number, text in enumerate(report.notes, 1)},
        }
    )
