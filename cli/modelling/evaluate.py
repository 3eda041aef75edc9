"""`milkweed evaluate` measures a bundle's top-1, top-5 and images a second on labelled images."""

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CommandError
from ..options import Bundle, DeviceOption, Json, number_option
from ..output import command_line, print_fields, print_json, skipped_images
from ..progress import job_progress
from .bundle_metrics import record_evaluation, record_threshold

if TYPE_CHECKING:
    from ...jobs.dataset import DataSet
    from ...jobs.evaluate import Evaluation
    from ...models.confidence import ConfidenceThreshold
    from ...server.repository.served_model import ServedModel

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="One folder a class, or files named ID_anything.jpg.", show_default=False)
]
BatchSize = Annotated[
    int | None, number_option("Images at once; answers do not depend on it. Not given: as the server would.")
]
LimitMeasured = Annotated[int | None, number_option("Measure only N images, evenly spaced over all.")]
Record = Annotated[bool, typer.Option("--record", help="Write the figures into the bundle's config.json.")]
FindThreshold = Annotated[
    bool,
    typer.Option("--find-threshold", help="Write into the bundle from which score on its answers are sure, by DATA."),
]
NO_THRESHOLD = "no threshold tells right answers from wrong ones, of which it needs ten each"


def evaluate(
    bundle: Bundle,
    data: Data,
    batch_size: BatchSize = None,
    limit: LimitMeasured = None,
    device: DeviceOption = None,
    record: Record = False,
    threshold: FindThreshold = False,
    json: Json = False,
) -> None:
    """Measure a bundle's accuracy and speed on labelled images.

    DATA holds one folder a class, named by label id, label or index, or files whose names begin with a label
    id (n01440764_tench.JPEG). The answers are those of the server, to the bit, under the same MILKWEED_*
    settings.

    \b
    Example:
      milkweed evaluate ./deit ./imagenet/val --limit 5000
    """
    from ...jobs.dataset import labelled_images, spaced
    from ...jobs.evaluate import evaluate
    from ...models.bundle.reading import read_single_label
    from ...models.confidence import find_threshold
    from ...server.config.sources import load_settings
    from ...server.repository.served_model import open_model

    settings = load_settings({"device": device}, serving=False)
    dataset = labelled_images(data, read_single_label(bundle, "evaluate").labels)
    model = open_model(bundle.resolve().name, bundle, settings)
    with closing(model.pipeline), job_progress(units={"evaluate": "images"}) as progress:
        result = evaluate(
            model.pipeline,
            spaced(dataset.samples, limit) if limit else dataset.samples,
            max_image_bytes=settings.max_image_bytes,
            batch_size=batch_size,
            progress=progress,
        )
    if not result.images:
        raise CommandError(f"DATA {data}: none of {len(result.skipped)} images could be read")
    figures = {**_figures(result), "classes": dataset.classes, "limit": limit, **_means(model)}
    confidence = find_threshold(result.scores, result.right, "labels") if threshold else model.config.confidence
    figures |= _sure(result, confidence)
    if record:
        record_evaluation(bundle, model.config.version, data.resolve().name, {**figures, **_circumstances()})
    if threshold:
        if confidence is None:
            raise CommandError(f"DATA {data}: {NO_THRESHOLD}")
        arguments = {"data": data.resolve().name, "limit": limit, "find_threshold": True}
        record_threshold(bundle, model.config.version, confidence, arguments, result.seconds)
    if json:
        about = {"bundle": str(bundle), "version": model.config.version, "data": str(data), "layout": dataset.layout}
        more = {"passed_over": dataset.passed_over, "skipped": skipped_images(result.skipped), "recorded": record}
        print_json({**about, **figures, **more})
        return
    _print(bundle, model, dataset, result, figures)
    if record or threshold:
        print_fields({"recorded ": bundle / "config.json"})


def _figures(result: "Evaluation") -> dict[str, Any]:
    """Return the figures as plain data."""
    return {
        "images": result.images,
        "top1": _rounded(result.top1, 4),
        "top5": _rounded(result.top5, 4),
        "correct1": result.correct1,
        "correct5": result.correct5,
        "unreadable": len(result.skipped),
        "images_per_second": round(result.images_per_second, 2),
        "seconds": round(result.seconds, 3),
        "decode_seconds": round(result.decode_seconds, 3),
        "forward_seconds": round(result.forward_seconds, 3),
    }


def _means(model: "ServedModel") -> dict[str, str]:
    """Name the device, the numbers and the code that computed the figures."""
    pipeline = model.pipeline
    return {
        "device": str(pipeline.device),
        "dtype": model.dtype,
        "engine": pipeline.backend.name,
        **({} if model.graph is None else {"graph": f"{model.graph} graph"}),
        "lanes": str(pipeline.plan),
        "loader": model.loader,
    }


def _print(
    bundle: Path, model: "ServedModel", dataset: "DataSet", result: "Evaluation", figures: Mapping[str, Any]
) -> None:
    unreadable = f", {len(result.skipped)} unreadable and skipped" if result.skipped else ""
    others = f", {dataset.passed_over} files passed over" if dataset.passed_over else ""
    top5 = "-, no more than five classes" if result.top5 is None else f"{result.top5:.2f} % ({result.correct5})"
    print_fields(
        {
            "bundle": f"{bundle} ({model.config.arch}, version {model.config.version})",
            "data": f"{dataset.root} ({dataset.layout}, {dataset.classes} classes{others})",
            "images": f"{result.images}{unreadable}",
            "top-1": f"{result.top1:.2f} % ({result.correct1})",
            "top-5": top5,
            **({} if figures["sure"] is None else {"sure": _sure_line(result, figures["sure"], figures["sure1"])}),
            "images/s": f"{result.images_per_second:.1f} (decode {result.decode_seconds:.1f} s, "
            f"forward {result.forward_seconds:.1f} s)",
            "on": ", ".join(_means(model).values()),
        }
    )


def _sure(result: "Evaluation", confidence: "ConfidenceThreshold | None") -> dict[str, Any]:
    """Count the answers that are sure, and the right ones of them."""
    if confidence is None:
        return {"threshold": None, "sure": None, "sure1": None}
    sure = result.scores >= confidence.threshold
    return {"threshold": confidence.threshold, "sure": int(sure.sum()), "sure1": int((sure & result.right).sum())}


def _sure_line(result: "Evaluation", sure: int, sure1: int) -> str:
    """Say of how many images the model is sure, and how often it is right about them and about the others."""
    parts = ((sure1, sure), (result.correct1 - sure1, result.images - sure))
    right = ["none" if not images else f"{right / images:.2%} right" for right, images in parts]
    return f"{sure / result.images:.2%} of the images ({right[0]}), not of the others ({right[1]})"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _circumstances() -> dict[str, Any]:
    """Record when, with which versions and by which command the figures were measured."""
    from ...models.bundle.provenance import library_versions

    return {"date": datetime.now(UTC).date().isoformat(), "command": command_line(), "versions": library_versions()}
