"""The form of `milkweed compress` that searches: promises in, a table of everything that was measured out."""

from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import WRONG_USAGE, CommandError
from ..options import split_list
from ..output import bundle_line, command_line, megabytes, print_fields, print_json, print_table
from ..progress import job_progress
from .compress_options import OF_BOTH, SEARCH, CompressOptions

if TYPE_CHECKING:
    from ...jobs.search.front import Target
    from ...models import BundleConfig


def check_form(options: CompressOptions) -> None:
    """Refuse options of one form in the other.

    Raises:
        CommandError: names the option.
    """
    searches = options.images is not None
    for field in fields(options):
        default = None if field.default is MISSING else field.default
        if field.name in OF_BOTH or getattr(options, field.name) == default:
            continue
        if (field.name in SEARCH) != searches:
            name = f"--{field.name.replace('_', '-')}"
            why = "is of the expert's form, not of a search" if searches else "needs a search: give --images DIR"
            raise CommandError(f"{name} {why}", WRONG_USAGE)


def search(options: CompressOptions) -> None:
    """Search, and print what was found."""
    from ...jobs.search.compress import compress
    from ...jobs.search.job import MAX_BATCH, SearchJob

    assert options.images is not None
    target, batches = _target(options), split_list(options.batch)
    if odd := next((part for part in batches if not (part.isdecimal() and 1 <= int(part) <= MAX_BATCH)), None):
        raise CommandError(f"--batch {odd!r}: must be whole numbers from 1 to {MAX_BATCH}", WRONG_USAGE)
    asked = SearchJob(
        source=options.bundle,
        out=options.out,
        images=options.images,
        target=target,
        backends=tuple(split_list(options.backend)),
        batches=tuple(map(int, batches)),
        distil=options.distil,
        overwrite=options.force,
        command=command_line(),
    )
    job = replace(asked, source=_source(options))  # what was asked for is right; now it may take time
    with job_progress("compress: ") as progress:
        found, config = compress(job, progress)
    if options.json:
        print_json({"bundle": str(options.out), "version": config.version, **_record(config)})
    else:
        _print(options.out, config, found.seconds)


def _target(options: CompressOptions) -> "Target":
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ...jobs.search.front import Target

    try:
        size = None if options.bytes is None else int(TypeAdapter(ByteSize).validate_python(options.bytes))
        return Target(options.speedup, options.target_ms, options.max_drop, size)
    except ValidationError:
        raise CommandError(f"--bytes {options.bytes!r}: must be a size such as 6MB", WRONG_USAGE) from None
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def _source(options: CompressOptions) -> Path:
    """Return the bundle to begin with; a checkpoint is imported beside OUT first."""
    if (options.bundle / "config.json").is_file() and (options.bundle / "labels.json").is_file():
        return options.bundle
    from ...models.importing import import_checkpoint

    source = options.out.parent / f".{options.out.name}.source"
    if not source.exists():
        import_checkpoint(str(options.bundle), None, source)
    return source


def _record(config: "BundleConfig") -> dict[str, Any]:
    found: dict[str, Any] = config.metrics["search"]
    return found


def _print(out: Path, config: "BundleConfig", seconds: float) -> None:
    found = _record(config)
    batches = list(found["dense"]["ms"])
    columns = ("", "model", "computed by", *(f" ms, {batch} at a time" for batch in batches))
    rows = []
    for row in found["models"]:
        quality = row["quality"]
        change = quality["top1"]
        rows.append(
            (
                "->" if row["chosen"] else "*" if row["on_front"] else "",
                row["name"],
                row["computed_by"],
                *(f"{row['ms'][batch]:.2f}" for batch in batches),
                f"{row['speedup']:.2f}x",
                f"{quality['kl']['value']:.4f}",
                f"{quality['agreement']['value']:.1f} %",
                "-" if change is None else f"{change['value']:+.1f} [{change['low']:+.1f}, {change['high']:+.1f}]",
                megabytes(row["bytes"]),
            )
        )
    print_table((*columns, " speed", " KL", " as dense", " change of top-1", " size"), rows)
    top1 = found["models"][0]["quality"]["top1_of_dense"]
    print_fields(
        {
            "bundle": bundle_line(out, config),
            "judged on": f"{found['images']} images that fitted nothing"
            + ("" if top1 is None else f"; top-1 of the dense model {top1:.1f} %"),
            "took": f"{seconds / 60:.1f} min",
            **{f"note {number}": text for number, text in enumerate(found["notes"], 1)},
        }
    )
