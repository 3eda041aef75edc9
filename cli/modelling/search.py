"""The search of `milkweed compress`: targets in, a table of everything that was measured out."""

from dataclasses import MISSING, fields, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, get_args

from ..errors import WRONG_USAGE, CommandError
from ..options import split_list
from ..output import bundle_line, command_line, note, print_fields, print_json
from ..progress import epoch_line, job_progress
from .compress_options import OF_BOTH, OF_SEARCH, CompressOptions
from .report import print_frontier

if TYPE_CHECKING:
    from ...jobs.search.job import SearchJob
    from ...jobs.search.search import SearchResult
    from ...jobs.search.selection import Target
    from ...models import BundleConfig
    from ...models.report import Frontier


def check_mode(options: CompressOptions) -> None:
    """Refuse options of one mode in the other.

    Raises:
        CommandError: names the option.
    """
    searches = options.images is not None
    for field in fields(options):
        default = None if field.default is MISSING else field.default
        if field.name in OF_BOTH or getattr(options, field.name) == default:
            continue
        if (field.name in OF_SEARCH) != searches:
            name = f"--{field.name.replace('_', '-')}"
            why = "is of manual mode, not of a search" if searches else "needs a search: give --images DIR"
            raise CommandError(f"{name} {why}", WRONG_USAGE)


def search(options: CompressOptions) -> None:
    """Search, and print what was found."""
    from ...jobs.search.compress import compress
    from ...models.report import Frontier, plot_frontier
    from ...models.report.frontier import SEARCH

    job = replace(_job(options), source=_source(options))  # what was asked for is right; now it may take time
    with job_progress("compress: ", row=epoch_line, resumes=True, is_search=True) as progress:
        result, config = compress(job, progress)
    if job.source != options.bundle:
        rmtree(job.source)
    record = config.metrics[SEARCH]
    frontier = Frontier.from_dict(record)
    if options.plot is not None:
        note(f"wrote {plot_frontier(frontier, options.plot)}")
    if options.json:
        print_json({"bundle": str(options.out), "version": config.version, **record})
    else:
        _print(options.out, config, frontier, result)


def _job(options: CompressOptions) -> "SearchJob":
    from ...inference.backend import Backend
    from ...jobs.search.job import MAX_BATCH, SearchJob

    assert options.images is not None
    target, batches, backends = _target(options), split_list(options.batch), split_list(options.backend)
    if odd := next((part for part in batches if not (part.isdecimal() and 1 <= int(part) <= MAX_BATCH)), None):
        raise CommandError(f"--batch {odd!r}: must be whole numbers from 1 to {MAX_BATCH}", WRONG_USAGE)
    if odd := next((name for name in backends if name not in get_args(Backend)), None):
        raise CommandError(f"--backend {odd!r}: must be {', '.join(get_args(Backend))} or some of them", WRONG_USAGE)
    return SearchJob(
        source=options.bundle,
        out=options.out,
        images=options.images,
        target=target,
        backends=tuple(backends),
        batches=tuple(map(int, batches)),
        keep_weights=options.keep_weights,
        distil=options.distil,
        discard_search=options.discard_search,
        overwrite=options.force,
        command=command_line(),
    )


def _target(options: CompressOptions) -> "Target":
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ...jobs.search.selection import Target

    try:
        size = None if options.size is None else int(TypeAdapter(ByteSize).validate_python(options.size))
        return Target(options.speedup, options.target_ms, options.max_drop, size)
    except ValidationError:
        raise CommandError(f"--size {options.size!r}: must be a size such as 6MB", WRONG_USAGE) from None
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def _source(options: CompressOptions) -> Path:
    """Return the bundle to begin with; a checkpoint is imported beside OUT first."""
    if (options.bundle / "config.json").is_file() and (options.bundle / "labels.json").is_file():
        return options.bundle
    from ...models.importing import import_checkpoint

    source = options.out.parent / f".{options.out.name}.source"
    import_checkpoint(str(options.bundle), None, source, overwrite=True)  # one that is there may be of another MODEL
    return source


def _print(out: Path, config: "BundleConfig", frontier: "Frontier", result: "SearchResult") -> None:
    from ...models.report.terms import duration
    from ...models.report.verdict import doubts

    print_frontier(frontier)
    top1 = frontier.chosen.quality.top1_of_dense
    print_fields(
        {
            "bundle": bundle_line(out, config),
            "judged on": f"{frontier.images} held-out images"
            + ("" if top1 is None else f"; top-1 of the dense model {top1:.1f} %"),
            "took": duration(result.seconds),
            **({"kept": f"{result.work}: another target goes on from there"} if result.work.exists() else {}),
            "report": out / "report.html",
            **{f"note {number}": text for number, text in enumerate(frontier.notes, 1)},
            **{f"warning {number}": text for number, text in enumerate(doubts(frontier), 1)},
        }
    )
