"""`milkweed compress`: linear layers of a bundle become Monarch layers, by projection alone."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bundles import check_free
from .options import Bundle, Force, Json, Out, number_option, split_list
from .output import megabytes, print_fields, print_json, print_table
from .progress import progress

if TYPE_CHECKING:
    from ...models.compress import CompressReport

ACCURACY_WARNING = (
    "plain projection sees no data and trains nothing: a trained model loses accuracy by it, often nearly "
    "all. DeiT-Tiny, 81.0 % top-1, keeps 14.4 % with its MLPs projected at nblocks 2, 0.2 % at nblocks 4. "
    "Measure it (milkweed evaluate) before it serves anyone."
)
"""Figures: compress and evaluate, 500 ImageNet photographs, 24 MLP layers, no fine-tuning."""

Layers = Annotated[
    str,
    typer.Option("--layers", metavar="LIST", help="Which: mlp, qkv, proj, names or patterns, with commas between."),
]
Blocks = Annotated[int, number_option("--nblocks", "Blocks of each factor.")]
Rank = Annotated[
    int | None,
    number_option("--rank", "Rank of each of the N*N sub-blocks; as the paper's if not given."),
]


def compress(
    bundle: Bundle,
    out: Out,
    layers: Layers = "mlp",
    nblocks: Blocks = 4,
    rank: Rank = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make linear layers Monarch by projection alone (D2S).

    Each layer becomes the nearest Monarch matrix. A trained model loses accuracy by it: measure what is left.

    \b
    Example:
      milkweed compress ./deit ./deit-monarch --layers mlp --nblocks 2
    """
    check_free(out, force)
    from ...models import compress_model

    with progress("compress", "layers") as update:
        report = compress_model(
            bundle,
            out,
            layers=split_list(layers),
            nblocks=nblocks,
            rank=rank,
            overwrite=force,
            progress=lambda done, total, _: update(done, total),
        )
    if json:
        print_json(
            {
                "bundle": str(out),
                "version": report.config.version,
                "bytes_on_disk": report.config.bytes_on_disk,
                "parameters_before": report.parameters_before,
                "parameters_after": report.parameters_after,
                "layers": [asdict(layer) for layer in report.layers],
                "warnings": [ACCURACY_WARNING, *report.warnings],
                "seconds": round(report.seconds, 3),
            }
        )
        return
    _print(out, report)


def _print(out: Path, report: "CompressReport") -> None:
    columns = (
        "layer",
        " inputs",
        " outputs",
        " nblocks",
        " rank",
        " weights before",
        " after",
        " relative error",
    )
    rows = (
        (
            layer.name,
            layer.in_features,
            layer.out_features,
            layer.nblocks,
            "-" if layer.rank is None else layer.rank,
            f"{layer.dense_weights:,}",
            f"{layer.weights:,}",
            f"{layer.relative_error:.4f}",
        )
        for layer in report.layers
    )
    print_table(columns, rows)
    before, after = report.parameters_before, report.parameters_after
    print_fields(
        {
            "bundle": f"{out} (version {report.config.version}, {megabytes(report.config.bytes_on_disk)})",
            "parameters": f"{before:,} -> {after:,} ({100 * after / before:.1f} %)",
            "accuracy": ACCURACY_WARNING,
            **{f"warning {number}": text for number, text in enumerate(report.warnings, 1)},
        }
    )
