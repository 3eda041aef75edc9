"""`milkweed bench`: measures this machine. The one place in the server room that knows the bench room."""

import json as json_format
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from . import bench_options as given
from .bundles import demo_bundle, installed_demo
from .failure import FAILED, WRONG_USAGE, Failure
from .options import Json, number_option, split_list
from .output import flattened, note, print_fields, print_json, print_rich, print_table
from .progress import progress

app = typer.Typer(
    help="Measure this machine: forward, decoding, HTTP, load.\n\n\b\nExample:\n  milkweed bench model --threads 2",
    rich_markup_mode=None,
)

HTTP_OUT = Path("bench/results/http_overhead.json")

MADE_IMAGES = 12
"""JPEGs made for `bench decode` where no photographs are given."""

OutFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Where the JSON goes; bench/results/ if not given."),
]
MaybeBundle = Annotated[
    Path | None,
    typer.Argument(metavar="BUNDLE", help="Folder of the bundle; the demo model if not given."),
]


@app.command()
def model(
    bundle: Annotated[Path | None, typer.Argument(metavar="BUNDLE", help="A bundle with Monarch layers.")] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="NAME", help="Measure this architecture, random weights; repeatable."),
    ] = None,
    layers: Annotated[str, typer.Option("--layers", metavar="LIST", help="With --arch: layers made Monarch.")] = "mlp",
    nblocks: Annotated[int, number_option("--nblocks", "Blocks, of --arch and of the MLPs.")] = 4,
    threads: Annotated[int, number_option("--threads", "Of one forward.")] = 1,
    seconds: Annotated[
        float, number_option("--seconds", "Of measuring a row; at least 7 rounds.", least=0, kind=float)
    ] = 3.0,
    mlp: Annotated[bool, typer.Option("--mlp/--no-mlp", help="The MLP blocks of ViT-S and ViT-B as well.")] = True,
    out: OutFile = None,
    json: Json = False,
) -> None:
    """Compare dense with Monarch: forwards, and MLPs alone.

    Both compute the same; the calls alternate in one run. Ratios above 1: Monarch is faster. Without BUNDLE
    and --arch: the demo model, and two architectures with random weights.

    \b
    Example:
      milkweed bench model ./deit-monarch --threads 2
    """
    from ...bench.model import ARCHS, DEFAULT_OUT, run

    chosen = bundle is not None or arch is not None
    with progress("bench model", "rows") as update:
        document = run(
            bundle if chosen else installed_demo(),
            archs=(arch or ()) if chosen else ARCHS,
            layers=split_list(layers),
            nblocks=nblocks,
            threads=threads,
            seconds=seconds,
            mlp=mlp,
            progress=update,
        )
    _finish(document, out or DEFAULT_OUT, json)
    if not json:
        _print_model(document)


@app.command()
def decode(
    images: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGES", help="Folder of JPEGs; made ones, unlike photographs, if not given."),
    ] = None,
    rounds: Annotated[int, number_option("--rounds", "Passes over the images a row, taking turns.")] = 5,
    limit: Annotated[int, number_option("--limit", "Images that are timed, in order of their names.")] = 200,
    sections: Annotated[
        str | None,
        typer.Option("--sections", metavar="LIST", help="Some of one, batches, isolation, equality, damage; else all."),
    ] = None,
    out: OutFile = None,
    json: Json = False,
) -> None:
    """Compare ways from JPEG bytes to model input.

    One image after the other: ours, timm's, torchvision's, nvImageCodec's and OpenCV's ways, where they are
    installed. Then our loaders: on batches, with bad images among good ones, and their pixels against the
    reference's.

    \b
    Example:
      milkweed bench decode ./photos --rounds 5 --sections one,batches
    """
    from ...bench.decode import DEFAULT_OUT, SECTIONS, run
    from ...bench.decode_tables import tables

    chosen = SECTIONS if sections is None else split_list(sections)
    if not chosen or set(chosen) - set(SECTIONS):
        raise Failure(f"--sections {sections}: expected some of {', '.join(SECTIONS)}", WRONG_USAGE)
    with tempfile.TemporaryDirectory() as folder, progress("bench decode", "sections") as update:
        document = run(
            images or _made_jpegs(Path(folder)),
            out=None,
            rounds=rounds,
            limit=limit,
            sections=chosen,
            progress=update,
        )
    document["source"] = str(images) if images else f"{MADE_IMAGES} made JPEGs of smooth shapes and grain"
    _finish(document, out or DEFAULT_OUT, json)
    if not json:
        for table in tables(document):
            print_rich(table)


@app.command()
def http(
    bundle: MaybeBundle = None,
    requests: Annotated[int, number_option("--requests", "Posted in all.", least=2)] = 2000,
    concurrency: Annotated[int, number_option("--concurrency", "Connections at once.")] = 32,
    body_bytes: Annotated[int, number_option("--body-bytes", "Size of the JPEG posted.", least=10_000)] = 110_000,
    out: OutFile = None,
    json: Json = False,
) -> None:
    """Measure what the server itself costs a request.

    CPU time without decode and forward; latency, memory, errors.

    \b
    Example:
      milkweed bench http --requests 2000 --concurrency 32
    """
    from ...bench.http_overhead import run

    document = run(bundle or demo_bundle(), requests=requests, concurrency=concurrency, body_bytes=body_bytes)
    _finish(document, out or HTTP_OUT, json)
    if not json:
        print_fields(flattened(document))
    if document["errors"]:
        raise Failure(f"{document['errors']} of {document['requests']} requests failed", FAILED)


@app.command()
def server(
    bundle: given.Server = None,
    url: given.Url = None,
    arch: given.Arch = None,
    sections: given.Sections = None,
    body: given.Bodies = None,
    photos: given.Photos = None,
    images: given.Images = 1,
    seconds: given.Seconds = 10.0,
    concurrency: given.Concurrency = 32,
    clients: given.Clients = 1,
    arrivals: given.Arriving = "poisson",
    loads: given.Loads = "0.3,0.5,0.8",
    rates: given.Rates = None,
    timeout_ms: given.Timeout = 10_000,
    overload: given.Times = 2.0,
    overload_timeout_ms: given.OverloadTimeout = 500,
    malformed: given.Malformed = 0.09,
    restarts: given.Restarts = 4,
    reloads: given.Reloads = 10,
    endpoint_delay_ms: given.Delay = 400,
    minutes: given.Minutes = 10.0,
    api_key: given.ApiKey = None,
    settings: given.Settings = None,
    plot: given.Plot = None,
    out: OutFile = None,
    json: Json = False,
) -> None:
    """Put a server under load: capacity, latency, overload, bad neighbours, restarts.

    Open loop: requests start on a schedule, whether or not the server keeps up; latency counts from the intended
    start. Exits with 1 where requests were lost, answered wrongly or refused without Retry-After, or good ones failed
    below capacity.

    \b
    Examples:
      milkweed bench server --seconds 10 --plot server.svg
      milkweed bench server ./deit --photos ./photos --sections capacity,load
      milkweed bench server --sections soak --minutes 30
    """
    from ...bench.load.plan import Watch
    from ...bench.load.schedule import ARRIVALS
    from ...bench.serving import run as bench
    from ...bench.serving.bodies import KINDS
    from ...bench.serving.plot import plot as draw
    from ...bench.serving.sections import Options
    from ...bench.serving.tables import line, table

    if sum(value is not None for value in (bundle, url, arch)) > 1:
        raise Failure("give one of BUNDLE, --url and --arch", WRONG_USAGE)
    request = bench.Request(
        bundle=bundle,
        url=url,
        arch=arch,
        sections=given.chosen("--sections", sections, bench.SECTIONS) or bench.usual(url),
        bodies=given.chosen("--body", body, KINDS),
        photos=photos,
        images=images,
        seconds=seconds,
        concurrency=concurrency,
        clients=clients,
        timeout_seconds=timeout_ms / 1e3,
        api_key=api_key,
        settings=given.pairs("--set", settings),
        restarts=restarts,
        reloads=reloads,
        watch=Watch(delay_seconds=endpoint_delay_ms / 1e3),
        options=Options(
            arrivals=(given.chosen("--arrivals", arrivals, ARRIVALS) or ["poisson"])[0],
            loads=given.numbers("--loads", loads),
            rates=given.numbers("--rates", rates),
            overload=overload,
            overload_timeout_seconds=overload_timeout_ms / 1e3,
            malformed_share=malformed,
            soak_minutes=minutes,
        ),
    )
    document = bench.run(request, say=lambda row: note(line(row)))
    _finish(document, out or bench.DEFAULT_OUT, json, secret=api_key)
    if plot is not None:
        note(f"wrote {draw(document, plot)}")
    if not json:
        print_rich(table(document))
    if document["complaints"]:
        raise Failure("; ".join(document["complaints"]), FAILED)


def _made_jpegs(folder: Path) -> Path:
    """JPEGs of the usual size of ImageNet's, upright and lying."""
    from ...bench.bodies import made_jpegs

    for number, body in enumerate(made_jpegs(MADE_IMAGES)):
        (folder / f"{number:02d}.jpg").write_bytes(body)
    return folder


def _finish(document: dict[str, Any], out: Path, json: bool, secret: str | None = None) -> None:
    """Write the JSON file, with the command that made it, less its secret, and print it where asked."""
    words = [word.replace(secret, "***") if secret else word for word in sys.argv[1:]]
    document["command"] = shlex.join(["milkweed", *words])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json_format.dumps(document, indent=1) + "\n")
    if json:
        print_json(document)
    else:
        note(f"wrote {out}")


def _print_model(document: Mapping[str, Any]) -> None:
    machine, settings = document["machine"], document["settings"]
    print(
        f"{machine['processor']}, threads {settings['threads']}, {machine['cpu_capability']}; "
        f"ms an operation: wall (CPU), medians; ratio = dense / Monarch"
    )
    print_table(
        ("what", "dtype", " images", " dense ms", " Monarch ms", " ratio", " CPU ratio", " MACs ratio"),
        (
            (
                row["name"],
                row["dtype"],
                row["images"],
                _times(row["dense"]),
                _times(row["monarch"]),
                f"{row['ratio_wall']:.2f}",
                f"{row['ratio_cpu']:.2f}",
                f"{row['macs_dense'] / row['macs_monarch']:.2f}",
            )
            for row in document["rows"]
        ),
    )


def _times(side: Mapping[str, float]) -> str:
    return f"{side['wall_ms']:.2f} ({side['cpu_ms']:.2f})"
