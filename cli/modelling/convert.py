"""`milkweed convert` stores a bundle's weights in another precision, and measures what that cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..bundle_args import check_free
from ..options import Bundle, DeviceOption, Force, Int8Limit, Json, Out, number_option, storage_option, text_option
from ..output import int8_lines, megabytes, print_fields, print_json, storage_line
from ..progress import job_progress

if TYPE_CHECKING:
    from ...jobs.conversion import ConvertReport

Storage = Annotated[str, storage_option("float32, bfloat16, float16 or int8 (with a scale for each output channel).")]
ImagesFolder = Annotated[
    Path | None, text_option("DIR", "Images to compare the answers before and after on; no labels needed.")
]
LabelledFolder = Annotated[Path | None, text_option("DIR", "Labelled images: accuracy before and after, too.")]
LimitCompared = Annotated[int | None, number_option("Only N images, evenly spaced over all.")]

UNMEASURED = "what this cost was not measured: give --evaluate or --images, or measure the result (milkweed evaluate)"


def convert(
    bundle: Bundle,
    out: Out,
    storage: Storage,
    int8_limit: Int8Limit = None,
    images: ImagesFolder = None,
    evaluate: LabelledFolder = None,
    limit: LimitCompared = None,
    device: DeviceOption = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Store a bundle's weights in fewer bits, and say what it cost.

    bfloat16 and float16 halve the file; int8 makes it a quarter, and the weights in the memory of a server on a CPU
    too. Layers whose outputs int8 changes by more than --int8-limit stay bfloat16.

    \b
    Example:
      milkweed convert ./deit ./deit-int8 --storage int8 --evaluate ./imagenet/val
    """
    check_free(out, force)
    from ...inference.device import resolve_device, use_device
    from ...jobs.convert import ConvertJob
    from ...jobs.convert import convert as run_conversion
    from ...jobs.quantisation import INT8_LIMIT

    where = resolve_device(device or "auto").for_torch
    use_device(where)
    job = ConvertJob(
        source=bundle,
        out=out,
        storage=storage,
        int8_limit=INT8_LIMIT if int8_limit is None else int8_limit,
        images=images,
        evaluate=evaluate,
        limit=limit,
        device=where,
        overwrite=force,
    )
    with job_progress("convert: ") as progress:
        report = run_conversion(job, progress)
    if json:
        print_json(_document(out, report))
    else:
        _print(out, report)


def _document(out: Path, report: "ConvertReport") -> dict[str, Any]:
    return {
        "bundle": str(out),
        "version": report.config.version,
        "bytes_before": report.source.bytes_on_disk,
        "bytes_on_disk": report.config.bytes_on_disk,
        "storage": dict(report.config.storage),
        "measured": dict(report.config.metrics["storage"]),
        "seconds": round(report.seconds, 3),
    }


def _print(out: Path, report: "ConvertReport") -> None:
    source, config = report.source, report.config
    before, after = report.before, report.after
    fields = {
        "bundle": f"{out} (version {config.version})",
        "on disk": f"{megabytes(source.bytes_on_disk)} -> {megabytes(config.bytes_on_disk)}",
        "weights": storage_line(config.storage),
        **int8_lines(config.metrics["storage"]),
    }
    if source.storage:
        fields["weights"] += f"; they were {storage_line(source.storage)}, and what that rounded stays rounded"
    if before is None or after is None:
        fields |= {"measured": "nothing", "warning": UNMEASURED}
    else:
        changes = [f"KL {after.kl:.5f}, {after.agreement:.1f} % as before"]
        if before.top1 is not None:
            changes.append(f"top-1 {before.top1:.2f} -> {after.top1:.2f} %")
        fields["measured"] = f"{after.images} images: {', '.join(changes)}"
    print_fields(fields)
