"""`milkweed compress`: a target in, the smaller model out, and a table of everything that was measured."""

import re
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, get_args

from ..bundle_args import check_free
from ..errors import WRONG_USAGE, CommandError
from ..options import check_plot, split_list, takes
from ..output import bundle_line, command_line, note, print_fields, print_json, sure_field
from ..progress import epoch_line, job_progress
from .compress_options import CompressOptions
from .report import print_frontier

if TYPE_CHECKING:
    from ...compress.job import CompressJob
    from ...compress.recipe import Recipe
    from ...compress.search import SearchResult
    from ...compress.selection import Target
    from ...models import BundleConfig
    from ...models.report import Frontier

_LATENCY = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s)?")


@takes(CompressOptions)
def compress(options: CompressOptions) -> None:
    """Make a model smaller and faster, and say what it cost.

    By photographs alone: Monarch layers, fewer tokens, narrower layers, 8 bits and training are tried, each measured on
    this machine; the result meets the target that is asked for, or the command says what can be had. With --recipe
    nothing is searched: what its file says is done, and measured. What was interrupted goes on when the same command is
    given again. A report is written beside the bundle, OUT/report.html.

    \b
    Example:
      milkweed compress ./deit ./deit-fast --images ./photos --speedup 3
      milkweed compress ./deit ./deit-4 --images ./photos --recipe r.json
    """
    from ...compress.write import compress
    from ...models.report import Frontier, plot_frontier
    from ...models.report.frontier import SEARCH

    check_free(options.out, options.force)
    check_plot(options.plot)
    job = replace(_job(options), source=_source(options))  # what was asked for is right; now it may take time
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
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


def _job(options: CompressOptions) -> "CompressJob":
    from ...compress.job import CompressJob
    from ...inference.backend import Backend

    batches, backends = split_list(options.batch), split_list(options.backend)
    if odd := next((part for part in batches if not part.isdecimal()), None):
        raise CommandError(f"--batch {odd!r}: must be whole numbers", WRONG_USAGE)
    if odd := next((name for name in backends if name not in get_args(Backend)), None):
        raise CommandError(f"--backend {odd!r}: must be {', '.join(get_args(Backend))} or some of them", WRONG_USAGE)
    target, recipe = _target(options), _recipe(options)
    try:
        return CompressJob(
            source=options.bundle,
            out=options.out,
            images=options.images,
            target=target,
            recipe=recipe,
            methods=tuple(split_list(options.methods)),
            minutes=options.minutes,
            backends=tuple(backends),
            batches=tuple(map(int, batches)),
            keep_weights=options.keep_weights,
            discard_search=options.discard_search,
            overwrite=options.force,
            command=command_line(),
        )
    except ValueError as error:
        raise CommandError(f"--{error}", WRONG_USAGE) from None


def _recipe(options: CompressOptions) -> "Recipe | None":
    """Read the recipe, beside which nothing is searched for, and which is of the bundle's architecture."""
    from ...compress.job import RecipeFile
    from ...models import read_config

    if options.recipe is None:
        return None
    searched = ("speedup", "latency", "max_drop", "size", "minutes")
    targets = [f"--{name.replace('_', '-')}" for name in searched if getattr(options, name) is not None]
    if targets := [*targets, *(["--try"] if options.methods else [])]:
        raise CommandError(
            f"{targets[0]} is for a search: --recipe {options.recipe} says all that is done", WRONG_USAGE
        )
    file = RecipeFile.read(options.recipe)
    if file.arch is not None and _is_bundle(options.bundle) and (arch := read_config(options.bundle).arch) != file.arch:
        raise CommandError(f"--recipe {options.recipe} is for {file.arch}, {options.bundle} is {arch}")
    return file.recipe


def _target(options: CompressOptions) -> "Target":
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ...compress.selection import Target

    try:
        size = None if options.size is None else int(TypeAdapter(ByteSize).validate_python(options.size))
    except ValidationError:
        raise CommandError(f"--size {options.size!r}: must be a size such as 6MB", WRONG_USAGE) from None
    ms = None
    if options.latency is not None:
        if (time := _LATENCY.fullmatch(options.latency)) is None:
            raise CommandError(f"--latency {options.latency!r}: must be a time such as 8ms", WRONG_USAGE)
        ms = float(time[1]) * (1000 if time[2] == "s" else 1)
    try:
        return Target(options.speedup, ms, options.max_drop, size)
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def _is_bundle(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / "labels.json").is_file()


def _source(options: CompressOptions) -> Path:
    """Return the bundle to begin with; a checkpoint is imported beside OUT first."""
    if _is_bundle(options.bundle):
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
            **sure_field(config),
            **({} if (embedding := frontier.chosen.quality.embedding) is None else {"embedding": embedding}),
            "took": duration(result.seconds),
            **({"kept": f"{result.work}: another target goes on from there"} if result.work.exists() else {}),
            "report": out / "report.html",
            **{f"note {number}": text for number, text in enumerate(frontier.notes, 1)},
            **{f"warning {number}": text for number, text in enumerate(doubts(frontier), 1)},
        }
    )
