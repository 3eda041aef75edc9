"""`milkweed compress` makes the linear layers of a bundle structured: fitted to images, searched for, distilled."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError
from ..options import check_plot, filled, split_list, takes
from ..output import bundle_line, command_line, int8_lines, note, print_fields, print_json, print_table, storage_line
from ..progress import epoch_line, job_progress
from .compress_options import CompressOptions
from .search import check_mode, search

if TYPE_CHECKING:
    import torch

    from ...jobs.compress_job import CompressJob
    from ...loaders.dataset.augmentation import Augmentation
    from ...models.compress import CompressReport, CompressRequest
    from ...models.distillation import DistillationPlan


@takes(CompressOptions)
def compress(options: CompressOptions) -> None:
    """Make a model smaller and faster, and say what it cost.

    With --images, one command searches: tokens, 8 bits and training by photographs alone, every trial measured on
    this machine; the result meets the target that is asked for, or the command says what can be had. An interrupted
    search goes on when the same command is given again. Both modes write a report, OUT/report.html.

    Without it, you choose (manual mode). With --calibration, layers keep the
    outputs that images give; with --budget, the structure of each is searched; with --recover, the result learns from
    the dense model. Without any of them each layer becomes the nearest structured matrix (plain projection, D2S), by
    which a trained model loses accuracy, often nearly all. An interrupted distillation goes on when the same command is
    given again.

    \b
    Example:
      milkweed compress ./deit ./deit-fast --images ./photos --speedup 3
      milkweed compress ./deit ./deit-65 --layers mlp,qkv,proj \\
        --budget 0.65 --recover ./photos --plot deit-65.svg
    """
    check_free(options.out, options.force)
    check_plot(options.plot)
    check_mode(options)
    if options.images is not None:
        search(options)
        return
    import torch

    from ...jobs.compress import compress

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    job = _job(options)
    with job_progress("compress: ", row=epoch_line, resumes=options.recover is not None) as progress:
        report = compress(job, progress)
    if options.plot is not None:
        from ...models.report import plot_report

        note(f"wrote {plot_report(report.report, options.plot)}")
    if options.json:
        print_json(_document(options.out, report))
    else:
        _print(options.out, report)


def _job(options: CompressOptions) -> "CompressJob":
    from ...inference.device import resolve_device, use_device
    from ...jobs.compress_job import CompressJob

    device = resolve_device(options.device or "auto").for_torch
    use_device(device)
    request, budget = _request(options), options.budget
    if budget is not None and options.calibration is None and options.recover is None:
        raise CommandError(f"--budget {budget:g} needs images to measure on: give --calibration DIR", WRONG_USAGE)
    return filled(
        CompressJob,
        options,
        source=options.bundle,
        request=request,
        plan=_plan(options, device),
        augmentation=distillation_augmentation(options.bundle),
        device=device,
        overwrite=options.force,
        command=command_line(),
    )


def _request(options: CompressOptions) -> "CompressRequest":
    from ...models.compress import CompressRequest

    return filled(
        CompressRequest,
        options,
        layers=tuple(split_list(options.layers)),
        options=_kind_options(options),
        block_counts=_numbers("--block-counts", options.block_counts),
    )


def _kind_options(options: CompressOptions) -> dict[str, Any]:
    """Return the options of the chosen kind of structure; most kinds have none."""
    if options.structure == "pixelfly":
        return {
            "block_size": options.block_size,
            "butterfly_size": options.butterfly_size,
            "n_factors": options.n_factors,
            "gating": options.gating,
        }
    return {"shuffle": True} if options.shuffle else {}


def _plan(options: CompressOptions, device: "torch.device") -> "DistillationPlan":
    from ...inference.device import autocast_dtype
    from ...models.distillation import DistillationPlan

    named = {name.removeprefix("recover_"): value for name, value in vars(options).items()}
    if named["amp"] is None:
        named["amp"] = autocast_dtype(device)
    return filled(DistillationPlan, SimpleNamespace(**named))


def distillation_augmentation(bundle: Path) -> "Augmentation":
    """Choose a strong augmentation, since the images are few; small images are moved, not cut."""
    from ...loaders.dataset.augmentation import Augmentation
    from ...models import read_config

    if int(read_config(bundle).preprocess["size"]) <= 64:
        return Augmentation(crop="pad")
    return Augmentation(crop="resized", min_scale=0.25, color_jitter=0.3)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = split_list(text)
    odd = next((part for part in parts if not (part.isdecimal() and int(part) >= 1)), None)
    if odd is not None or not parts:
        raise CommandError(f"{option} {text!r}: must be whole numbers from 1 on, with commas between", WRONG_USAGE)
    return tuple(int(part) for part in parts)


def _document(out: Path, report: "CompressReport") -> dict[str, Any]:
    return {
        "bundle": str(out),
        "version": report.config.version,
        "bytes_on_disk": report.config.bytes_on_disk,
        "storage": dict(report.config.storage),
        "parameters_before": report.parameters_before,
        "parameters_after": report.parameters_after,
        "seconds": round(report.seconds, 3),
        "report": report.report.to_dict(),
    }


def _print(out: Path, report: "CompressReport") -> None:
    columns = ("layer", "kind", " inputs", " outputs", " nblocks", " rank", " weights before", " after", " error")
    rows = []
    for row in report.report.layers:
        if row.kind != "dense":
            shape = (row.in_features, row.out_features, row.nblocks or "-", row.rank or "-")
            error = "-" if row.error is None else f"{row.error:.4f}"
            rows.append((row.name, row.kind, *shape, f"{row.dense_weights:,}", f"{row.weights:,}", error))
    print_table(columns, rows)
    before, after = report.parameters_before, report.parameters_after
    print_fields(
        {
            "bundle": bundle_line(out, report.config),
            "parameters": f"{before:,} -> {after:,} ({100 * after / before:.1f} %)",
            **_quality(report),
            **({"weights": storage_line(report.config.storage)} if report.config.storage else {}),
            **int8_lines(report.config.metrics.get("storage", {})),
            "report": out / "report.html",
            **{f"warning {number}": text for number, text in enumerate(report.report.warnings, 1)},
        }
    )


def _quality(report: "CompressReport") -> dict[str, str]:
    before, after = report.report.before, report.report.after
    if before is None or after is None:
        return {}
    figures = [f"KL {after.kl:.3f}, agreement with dense {after.agreement:.1f} %" if after.kl is not None else ""]
    if before.top1 is not None and after.top1 is not None:
        figures.append(f"top-1 {before.top1:.1f} -> {after.top1:.1f} %")
    return {"held out": f"{after.images} images: {', '.join(filter(None, figures))}"}
