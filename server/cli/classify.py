"""`milkweed classify`: what is on these images, told by a bundle in this process or by a running server."""

import json as json_format
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .bundles import demo_bundle
from .failure import FAILED, WRONG_USAGE, Failure, one_line
from .options import Device, Json, number_option
from .output import print_json
from .progress import progress
from .remote import RemoteServer, Result

Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.", show_default=False),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask the server there.")]
Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="BUNDLE", help="Ask this bundle, in this process; the demo model if not given."),
]
TopK = Annotated[int | None, number_option("--top-k", "Classes an answer. [5]")]

CHUNK = 8
"""Images asked for at once: enough for all lanes of a CPU, few enough for the bar to move."""

NPY_MAGIC = b"\x93NUMPY"

Ask = Callable[[Sequence[bytes]], list[Result]]
Identity = dict[str, str]
"""Name and version of the model that answered."""


def classify(
    images: Images,
    url: Url = None,
    model: Model = None,
    top_k: TopK = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Tell what is on images, by a bundle or a running server.

    A folder stands for all images in it, a numpy array (.npy) with a batch axis for all along it. The exit code is 1
    if any image got no answer.

    \b
    Example:
      milkweed classify dog.jpg ./holiday --top-k 3
    """
    if url is not None and (model is not None or device is not None):
        raise Failure("--url asks a server: --model and --device do not go with it", WRONG_USAGE)
    paths = list(_expanded(images))
    identity: Identity = {}
    results: list[Result] = []
    asking = _server(url, top_k, identity) if url is not None else _bundle(model, top_k, device, identity)
    with asking as ask, progress("classify", "images") as update:
        for first in range(0, len(paths), CHUNK):
            results += _ask_files(ask, paths[first : first + CHUNK])
            update(min(first + CHUNK, len(paths)), len(paths))
    if json:
        print_json({**identity, "results": results})
    else:
        for result in results:
            _print(result)
    _fail_if_any(results)


@contextmanager
def _server(url: str, top_k: int | None, identity: Identity) -> Iterator[Ask]:
    with closing(RemoteServer(url, top_k)) as server:
        yield lambda images: [server(image) for image in images]
        identity.update(server.identity)


@contextmanager
def _bundle(path: Path | None, top_k: int | None, device: str | None, identity: Identity) -> Iterator[Ask]:
    """The served model, through the same pipeline and the same JSON as over HTTP."""
    from ..served import open_model
    from ..settings_source import load_settings

    # A few images are not worth a measurement; what a server has measured here is used.
    settings = load_settings({"device": device, "tuning": "off", "cuda_graphs": False})
    path = path or demo_bundle()
    served = open_model(path.resolve().name, path, settings)
    with closing(served.pipeline):
        classes = served.pipeline.num_classes
        if top_k is not None and top_k > classes:
            raise Failure(f"--top-k {top_k}: the model has {classes} classes", WRONG_USAGE)
        identity.update(model=served.name, version=served.config.version)
        wanted = top_k or min(settings.top_k, classes)
        yield lambda images: [
            json_format.loads(served.result_json(outcome, "")) for outcome in served.pipeline.classify(images, wanted)
        ]


def _ask_files(ask: Ask, paths: Sequence[Path]) -> list[Result]:
    """The results of some files, in order; a file that cannot be read is an error like a bad image."""
    contents = [pair for path in paths for pair in _images(path)]
    answers = iter(ask([content for _, content in contents if isinstance(content, bytes)]))
    return [{"image": name, **(next(answers) if isinstance(what, bytes) else what)} for name, what in contents]


def _images(path: Path) -> list[tuple[str, bytes | Result]]:
    """Names and contents of a file's images: one, or those of an array with a batch axis as FILE[0], FILE[1], ..."""
    content = _read(path)
    if not isinstance(content, bytes) or not content.startswith(NPY_MAGIC):
        return [(str(path), content)]
    from ...loaders.arrays import count_images, split_images

    if count_images(content) == 1:
        return [(str(path), split_images(content)[0])]
    return [(f"{path}[{place}]", image) for place, image in enumerate(split_images(content))]


def _read(path: Path) -> bytes | Result:
    try:
        return path.read_bytes()
    except OSError as error:
        return {"error": {"code": "unreadable", "message": f"cannot be read: {error.strerror}"}}


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    """Folders replaced by the images in them, by name."""
    from ..dataset import IMAGE_SUFFIXES

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        if not found:
            raise Failure(f"IMAGE {path}: no images in this folder")
        yield from found


def _print(result: Result) -> None:
    if "error" in result:
        print(f"{result['image']}\n  {result['error']['code']}: {one_line(result['error']['message'])}")
        return
    print(result["image"])
    for entry in result["predictions"]:
        name = "" if entry["id"] == str(entry["index"]) else f" ({entry['id']})"
        print(f"  {entry['score']:7.4f}  {entry['label']}{name}")


def _fail_if_any(results: Sequence[Result]) -> None:
    failed = [result for result in results if "error" in result]
    if not failed:
        return
    first: dict[str, Any] = failed[0]
    what = f"{first['image']}: {first['error']['code']}: {first['error']['message']}"
    if len(results) > 1:
        what = f"{len(failed)} of {len(results)} images got no answer, the first: {what}"
    raise Failure(what, FAILED)
