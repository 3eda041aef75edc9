"""`milkweed export` writes a bundle's model as an ONNX file, or into the bundle itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import WRONG_USAGE, CommandError
from ..options import Bundle, Json, text_option
from ..output import megabytes, print_fields, print_json

if TYPE_CHECKING:
    from ...models.onnx.export import ExportReport

OnnxFile = Annotated[Path | None, text_option("FILE", "The file to write; large weights go to FILE.data beside it.")]
Into = Annotated[bool, typer.Option("--into", help="Add the graph to the bundle itself.")]
DtypeOption = Annotated[
    Literal["float32", "float16", "bfloat16"],
    typer.Option(help="Numbers of the model; bfloat16: of its weights alone."),
]
ForceExport = Annotated[
    bool, typer.Option("--force", help="Replace a file, or a bundle's graph, that is there already.")
]


def export(
    bundle: Bundle,
    onnx: OnnxFile = None,
    into: Into = False,
    dtype: DtypeOption = "float32",
    force: ForceExport = False,
    json: Json = False,
) -> None:
    """Write a bundle's model as an ONNX file, for batches of any size.

    How its images are prepared and its labels are in the file's metadata. It is checked, and compared with PyTorch by
    ONNX Runtime, before it is in place. With --into a server needs no PyTorch to serve the bundle.

    \b
    Example:
      milkweed export ./deit --onnx deit.onnx
      milkweed export ./deit --into
    """
    if into == (onnx is not None):
        raise CommandError("export: give either --onnx FILE or --into", WRONG_USAGE)
    if into and dtype != "float32":
        raise CommandError(f"--dtype {dtype}: --into writes float32", WRONG_USAGE)
    if onnx is None:
        _into(bundle, force, json)
        return
    from ...models import export_bundle

    report = export_bundle(bundle, onnx, dtype=dtype, overwrite=force)
    if json:
        print_json(_document(onnx, report))
    else:
        _print(bundle, onnx, report)


def _document(file: Path, report: "ExportReport") -> dict[str, Any]:
    return {
        "file": str(file),
        "version": report.config.version,
        "arch": report.config.arch,
        "dtype": report.dtype,
        "opset": report.opset,
        "bytes": report.size_bytes,
        "weight_bytes": report.weight_bytes,
        "operators": dict(report.operators),
        "verified": report.verified.to_dict(),
        "seconds": round(report.seconds, 3),
    }


def _print(bundle: Path, file: Path, report: "ExportReport") -> None:
    config, verified = report.config, report.verified
    # How far the export is off: its largest logits, and the answers where tokens merge.
    within = f"within {verified.error:g} of the largest (limit {verified.limit:g})"
    off = f"logits {within}" if verified.kl is None else f"KL {verified.kl:g}, the median image's logits {within}"
    print_fields(
        {
            "file": f"{file} (opset {report.opset}, {report.dtype}, {megabytes(report.size_bytes)})",
            "bundle": f"{bundle} ({config.arch}, version {config.version})",
            "operators": ", ".join(f"{count} {name}" for name, count in report.operators.items()),
            "verified": f"{off}, {verified.by} against {verified.against}, {verified.images} images",
        }
    )


def _into(bundle: Path, force: bool, json: bool) -> None:
    from ...jobs.export_into import export_into

    config = export_into(bundle, overwrite=force)
    added = "graph.onnx" if config.program is None else "program.safetensors"
    if json:
        print_json({"bundle": str(bundle), "version": config.version, "added": added, "bytes": config.bytes_on_disk})
        return
    print_fields({"bundle": f"{bundle} (version {config.version}, {megabytes(config.bytes_on_disk)})", "added": added})
