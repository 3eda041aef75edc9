"""The app `milkweed bench`, and its commands that measure models, kernels, decoding and the server's own cost."""

import json as json_format
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.bundle_args import demo_bundle, installed_demo
from ...cli.errors import FAILED, WRONG_USAGE, CommandError
from ...cli.help import page
from ...cli.options import Json, Plot, decimal_option, number_option, split_list, text_option
from ...cli.output import flattened, print_json, print_table
from ...cli.progress import progress
from ..options import BatchSizes, Out, Threads, bundle_argument, chosen, counts
from .output import Files, print_decode, print_kernels, print_model
from .server import HEADINGS, server

app = typer.Typer(
    help="Measure this machine: server, models, kernels, decoding.\n\n"
    "Every command prints a table, writes JSON and, with --plot, a picture of it.\n\n"
    "\b\nExample:\n  milkweed bench model --batch-sizes 1,2,4,8,16 --plot model.svg",
    rich_markup_mode=None,
)

app.command(cls=page(HEADINGS))(server)

MADE_IMAGES = 12  # JPEGs made for `bench decode` where no photographs are given


@app.command(cls=page())
def model(
    bundle: Annotated[Path | None, bundle_argument("Folder of a bundle with structured layers.")] = None,
    arch: Annotated[
        list[str] | None, text_option("NAME", "Measure this architecture with random weights; repeatable.")
    ] = None,
    layers: Annotated[str, text_option("LIST", "With --arch: layers that are Monarch.")] = "mlp",
    nblocks: Annotated[int, number_option("Blocks of each Monarch factor, of --arch and of the MLPs.")] = 4,
    batch_sizes: BatchSizes = "1,8",
    threads: Threads = 1,
    seconds: Annotated[float, decimal_option("Seconds that each row is measured; at least 7 rounds.")] = 3.0,
    mlp: Annotated[
        bool, typer.Option("--mlp/--no-mlp", help="Measure the MLP blocks of ViT-S and ViT-B as well.")
    ] = True,
    plot: Plot = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare dense models with their Monarch form, on the CPU.

    Whole forwards by batch size, and MLPs alone. Both compute the same; the calls alternate in one run. Ratios above
    1: Monarch is faster. Without BUNDLE and --arch: the demo model, and two architectures with random weights.

    \b
    Example:
      milkweed bench model ./deit-monarch --batch-sizes 1,4,16 --plot model.svg
    """
    from ..model import ARCHS, DEFAULT_OUT, run
    from ..plots import model as draw

    sizes = counts("--batch-sizes", batch_sizes)
    files = Files(DEFAULT_OUT, draw, out, plot, json)
    named = bundle is not None or arch is not None
    source, archs = bundle if named else installed_demo(), (arch or ()) if named else ARCHS
    settings: dict[str, Any] = {"layers": split_list(layers), "nblocks": nblocks, "batch_sizes": sizes}
    settings |= {"threads": threads, "seconds": seconds, "mlp": mlp}
    with progress("bench model", "rows") as update:
        document = run(source, archs=archs, progress=update, **settings)
    files.finish(document, print_model)


@app.command(cls=page())
def kernels(
    batch_sizes: BatchSizes = "1,8",
    dtype: Annotated[str, text_option("float32|bfloat16", "Number type, on the CPU.")] = "float32",
    nblocks: Annotated[int, number_option("Blocks of each Monarch factor: 2, 4 or 8.", least=2)] = 4,
    threads: Threads = 1,
    rounds: Annotated[int, number_option("Rounds in which all ways take turns.")] = 7,
    device: Annotated[str, text_option("auto|cpu|cuda", "Where to measure; auto = a GPU if there is one.")] = "auto",
    plot: Plot = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Time kernels alone: MLPs of published shapes, dense and Monarch.

    Each way is checked against float64 first. The roof of the roofline is what this machine reaches in the same run:
    a large copy, a large matrix product. On a CPU these are PyTorch's ways and ours of strides; on a GPU all kernels
    at batches 1, 8, 32 and 128 in bfloat16, with attention and whole forwards, in under ten minutes.

    \b
    Example:
      milkweed bench kernels --batch-sizes 1,8 --threads 2 --plot roofline.svg
    """
    from ...inference.device import resolve_device
    from ..kernels import DEFAULT_OUT, DTYPES, GPU_OUT, NBLOCKS, run
    from ..plots import kernels as draw

    if dtype not in DTYPES:
        raise CommandError(f"--dtype {dtype}: expected {' or '.join(DTYPES)}", WRONG_USAGE)
    if nblocks not in NBLOCKS:
        raise CommandError(f"--nblocks {nblocks}: expected one of {', '.join(map(str, NBLOCKS))}", WRONG_USAGE)
    sizes = counts("--batch-sizes", batch_sizes)
    if resolve_device(device).type == "cuda":
        _gpu_kernels(nblocks, Files(GPU_OUT, draw, out, plot, json))
        return
    files = Files(DEFAULT_OUT, draw, out, plot, json)
    with progress("bench kernels", "shapes") as update:
        document = run(dtype=dtype, batches=sizes, nblocks=nblocks, threads=threads, rounds=rounds, progress=update)
    files.finish(document, print_kernels)


def _gpu_kernels(nblocks: int, files: Files) -> None:
    """The benchmark of the GPU, which prints its own tables; its journal stays beside the JSON."""
    from ..gpu import __main__ as command

    journal = files.document.with_suffix(".jsonl")
    journal.unlink(missing_ok=True)  # this command measures anew each time; `python -m milkweed.bench.gpu` goes on
    with redirect_stdout(sys.stderr if files.json else sys.stdout):
        code = command.main(["--out", str(journal), "--nblocks", str(nblocks)])
    if code == command.NOTHING:
        raise CommandError("nothing was measured: see above", FAILED)
    try:
        document = command.document(journal)
    except ValueError as error:
        raise CommandError(f"{error}; what was found is in {journal}", FAILED) from error
    files.document.write_text(json_format.dumps(document, indent=1) + "\n")
    files.picture(document)
    if files.json:
        print_json(document)
    if code == command.FAILED:
        raise CommandError("a check of a kernel failed: see above", FAILED)


@app.command(cls=page())
def decode(
    images: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGES", help="Folder of JPEGs; not given: made ones, which are unlike photographs."),
    ] = None,
    rounds: Annotated[int, number_option("Passes over the images; all ways take turns.")] = 5,
    limit: Annotated[int, number_option("Images that are timed at most, in order of their names.")] = 200,
    sections: Annotated[str | None, text_option("LIST", "Some of one, batches, damage, crop; not given: all.")] = None,
    plot: Plot = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare ways from JPEG bytes to model input.

    One image after the other: ours, timm's, torchvision's, nvImageCodec's and OpenCV's ways, where they are
    installed, and how far their pixels are from the reference's. Then our loaders on batches, how much damaged
    data is refused, and what decoding only the crop saves.

    \b
    Example:
      milkweed bench decode ./photos --sections one,batches --plot decode.svg
    """
    from ..bodies import made_jpegs
    from ..bodies import photos as read_photos
    from ..decode.run import DEFAULT_OUT, SECTIONS, run
    from ..plots import decode as draw

    parts = SECTIONS if sections is None else chosen("--sections", sections, tuple(SECTIONS))
    files = Files(DEFAULT_OUT, draw, out, plot, json)
    bodies = read_photos(images, limit) if images else made_jpegs(MADE_IMAGES)[:limit]
    with progress("bench decode", "sections") as update:
        document = run(bodies, rounds=rounds, sections=parts, progress=update)
    document["source"] = str(images) if images else f"{MADE_IMAGES} made JPEGs of smooth shapes and grain"
    files.finish(document, print_decode)


@app.command(cls=page())
def http(
    bundle: Annotated[Path | None, bundle_argument("Folder of the bundle; the demo model if not given.")] = None,
    requests: Annotated[int, number_option("Requests posted in all.", least=2)] = 2000,
    concurrency: Annotated[int, number_option("Connections at once.")] = 32,
    body_bytes: Annotated[int, number_option("Bytes of the JPEG that is posted.", least=10_000)] = 110_000,
    plot: Plot = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure what the server itself costs a request.

    CPU time of decoding, of the forward, and of all else; latency, memory, errors. Clients ask in a closed loop:
    for latency under load see `milkweed bench server`.

    \b
    Example:
      milkweed bench http --requests 2000 --concurrency 32 --plot http.svg
    """
    from ...models import read_config
    from ..plots import http as draw
    from ..server.http_overhead import DEFAULT_OUT, run

    files = Files(DEFAULT_OUT, draw, out, plot, json)
    bundle = bundle or demo_bundle()
    read_config(bundle)  # what is wrong with it is told before a server is started on it
    document = run(bundle, requests=requests, concurrency=concurrency, body_bytes=body_bytes)
    files.finish(document, lambda document: print_table(("figure", "value"), flattened(document).items()))
    if document["errors"]:
        raise CommandError(f"{document['errors']} of {document['requests']} requests failed", FAILED)
