"""`milkweed compress`: linear layers of a bundle become structured: fitted to images, searched for, recovered."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError, one_line
from ..options import Bundle, Device, Force, Int8Limit, Json, Out, Plot, check_plot, split_list
from ..output import int8_lines, megabytes, note, print_fields, print_json, print_table, storage_line
from ..progress import Steps
from .compress_options import (
    BlockCounts,
    Blocks,
    BlockSize,
    Budget,
    ButterflySize,
    CalibrationFolder,
    CalibrationImages,
    Cost,
    Factors,
    HardShare,
    Rank,
    Recover,
    RecoverAmp,
    RecoverBatch,
    RecoverBlockEpochs,
    RecoverEpochs,
    RecoverLr,
    RecoverTrained,
    Refinements,
    Shuffle,
    Storage,
    Structure,
)
from .train_options import Gating, Layers, Seed, Threads, Workers

if TYPE_CHECKING:
    import torch

    from ...jobs.compress_request import CompressJob
    from ...loaders.dataset.augmentation import Augmentation
    from ...models.compress import CompressReport
    from ...models.recovery import RecoveryPlan

BLOCK_COUNTS = "1,2,4,8"


def compress(
    bundle: Bundle,
    out: Out,
    layers: Layers = "mlp",
    structure: Structure = "monarch",
    nblocks: Blocks = 4,
    rank: Rank = None,
    block_size: BlockSize = 32,
    butterfly_size: ButterflySize = 16,
    n_factors: Factors = 2,
    gating: Gating = True,
    shuffle: Shuffle = False,
    budget: Budget = None,
    cost: Cost = "parameters",
    block_counts: BlockCounts = BLOCK_COUNTS,
    refinements: Refinements = None,
    calibration: CalibrationFolder = None,
    calibration_images: CalibrationImages = 512,
    recover: Recover = None,
    recover_epochs: RecoverEpochs = None,
    recover_block_epochs: RecoverBlockEpochs = None,
    recover_lr: RecoverLr = None,
    recover_batch_size: RecoverBatch = None,
    recover_trained: RecoverTrained = None,
    recover_amp: RecoverAmp = None,
    hard_share: HardShare = None,
    storage: Storage = "float32",
    int8_limit: Int8Limit = None,
    seed: Seed = 0,
    workers: Workers = 0,
    threads: Threads = None,
    device: Device = None,
    plot: Plot = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a bundle smaller and say what it cost, in OUT/report.html.

    With --calibration, layers keep the outputs that images give; with --budget, the structure of each is searched;
    with --recover, the result learns from the dense model. Without any of them each layer becomes the nearest
    structured matrix (plain projection, D2S), by which a trained model loses accuracy, often nearly all. An
    interrupted recovery goes on when the same command is given again.

    \b
    Example:
      milkweed compress ./deit ./deit-65 --layers mlp,qkv,proj \\
        --budget 0.65 --recover ./photos --plot deit-65.svg
    """
    given = dict(locals())  # so many options: the parts below take theirs by name
    check_free(out, force)
    check_plot(plot)
    import torch

    from ...jobs.compress import compress
    from ...jobs.compress_request import Progress

    if threads is not None:
        torch.set_num_threads(threads)
    run = _run(given)
    with ExitStack() as stack:
        steps = stack.enter_context(Steps("compress"))
        report = compress(
            run,
            Progress(step=steps, row=lambda row: note(_described(row)), note=lambda text: note(one_line(text))),
        )
    if plot is not None:
        from ...models.report import plot_report

        note(f"wrote {plot_report(report.report, plot)}")
    if json:
        print_json(_document(out, report))
    else:
        _print(out, report)


def _run(given: dict[str, Any]) -> "CompressJob":
    from ...inference.device import resolve_device, use_device
    from ...jobs.compress_request import CompressJob
    from ...models.compress import CompressRequest

    device = resolve_device(given["device"] or "auto")
    use_device(device)
    budget = given["budget"]
    request = CompressRequest(
        layers=tuple(split_list(given["layers"])),
        structure=given["structure"],
        nblocks=given["nblocks"],
        rank=given["rank"],
        options=_options(given),
        budget=budget,
        cost=given["cost"],
        block_counts=_numbers("--block-counts", given["block_counts"]),
        storage=given["storage"],
        **{name: given[name] for name in ("refinements", "int8_limit") if given[name] is not None},
    )
    if budget is not None and given["calibration"] is None and given["recover"] is None:
        raise CommandError(f"--budget {budget:g} needs images to measure on: give --calibration DIR", WRONG_USAGE)
    return CompressJob(
        source=given["bundle"],
        out=given["out"],
        request=request,
        calibration=given["calibration"],
        calibration_images=given["calibration_images"],
        recover=given["recover"],
        plan=_plan(given, device),
        augmentation=recovery_augmentation(given["bundle"]),
        device=device,
        workers=given["workers"],
        overwrite=given["force"],
        command=shlex.join(["milkweed", *sys.argv[1:]]),
    )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Options of the kinds that have them; the others' stay at their defaults."""
    if given["structure"] == "pixelfly":
        own = {name: given[name] for name in ("block_size", "butterfly_size", "n_factors")}
        return {**own, "gating": given["gating"]}
    return {"shuffle": True} if given["shuffle"] else {}


def _plan(given: dict[str, Any], device: "torch.device") -> "RecoveryPlan":
    from ...inference.device import autocast_dtype
    from ...models.recovery import RecoveryPlan

    names = {
        "epochs": "recover_epochs",
        "block_epochs": "recover_block_epochs",
        "lr": "recover_lr",
        "batch_size": "recover_batch_size",
        "trained": "recover_trained",
        "amp": "recover_amp",
        "hard_share": "hard_share",
    }
    chosen = {field: given[name] for field, name in names.items() if given[name] is not None}
    return RecoveryPlan(**{"amp": autocast_dtype(device), **chosen}, seed=given["seed"])


def recovery_augmentation(bundle: Path) -> "Augmentation":
    """Strong augmentation for few images; small images are moved, not cut."""
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


def _described(row: Any) -> str:
    """A row of the recovery's history as a line for a person."""
    figures = [f"loss {row['loss']:.4f}"] if "loss" in row else []
    figures += [f"KL {row['kl']:.4f}, {row['agreement']:.1f} % agree"] if "kl" in row else []
    return f"{row.get('phase', 'recovery')}: epoch {row['epoch']}, {', '.join(figures)}"


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
    changed = [row for row in report.report.layers if row.kind != "dense"]
    print_table(
        columns,
        (
            (
                row.name,
                row.kind,
                row.in_features,
                row.out_features,
                row.nblocks or "-",
                row.rank or "-",
                f"{row.dense_weights:,}",
                f"{row.weights:,}",
                "-" if row.error is None else f"{row.error:.4f}",
            )
            for row in changed
        ),
    )
    before, after = report.parameters_before, report.parameters_after
    print_fields(
        {
            "bundle": f"{out} (version {report.config.version}, {megabytes(report.config.bytes_on_disk)})",
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
    found = [f"KL {after.kl:.3f}, {after.agreement:.1f} % as dense" if after.kl is not None else ""]
    if before.top1 is not None and after.top1 is not None:
        found.append(f"top-1 {before.top1:.1f} -> {after.top1:.1f} %")
    return {"held out": f"{after.images} images: {', '.join(filter(None, found))}"}
