"""What a server without PyTorch costs, beside one with it: first answer, memory, answers, a directory of many models.

    python -m milkweed.bench.studies.light BUNDLE PHOTOS [--backends milkweed,openvino,torch] [--models 50]

Each backend is started `--starts` times in turns, with PyTorch hidden from it except for the backend `torch`; what is
timed is from the start of the process to the answer to a photograph by POST, the page cache warm. All photographs are
posted to a server that cannot import PyTorch and to one that can. Then one server gets a folder of so many copies.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np
import psutil

from ...loaders import CpuLoader, PillowLoader, PreprocessSpec
from ...models.bundle.reading import read_config
from ..machine import about
from ..process import free_port, usage

ASK_EVERY_SECONDS, MOST_SECONDS = 0.01, 180.0

SERVE = "import sys; from milkweed.cli import main; sys.exit(main(sys.argv[1:]))"
HIDDEN = "import sys; sys.modules.update(dict.fromkeys(('torch', 'timm'))); "
"""An import of either fails, as where they are not installed."""


def main() -> None:
    """Print each row, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path, help="a folder of JPEGs")
    parser.add_argument("--backends", default="milkweed,torch")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("bench/results/light.json"))
    options = parser.parse_args()
    load = os.getloadavg()
    photos = [path.read_bytes() for path in sorted(options.photos.iterdir())]
    backends = options.backends.split(",")
    rows = starts(options.bundle, photos[0], backends, options.starts)
    rows += [answers(options.bundle, photos, backend) for backend in backends if backend != "torch"]
    rows += [pixels(options.bundle, photos), many(options.bundle, options.models, backends[0])]
    for row in rows:
        print(json.dumps(row))
    options.out.write_text(json.dumps({**about("light", load), "rows": rows}, indent=1) + "\n")


@contextmanager
def server(arguments: Sequence[str], *, hidden: bool) -> Iterator[tuple[psutil.Popen, str]]:
    """A server process that was just started, and its URL."""
    port = free_port()
    command = [sys.executable, "-P", "-c", (HIDDEN if hidden else "") + SERVE, "serve", *arguments]
    process = psutil.Popen(
        [*command, "--port", str(port), "--host", "127.0.0.1", "--metrics-port", "0"], stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with suppress(psutil.NoSuchProcess):  # it may have ended with an error
            process.terminate()
        process.wait(60)


def asked(process: psutil.Popen, url: str, body: bytes | None = None) -> Any:
    """The answer to a request, which is made again until there is one."""
    request = urllib.request.Request(url, body, {"Content-Type": "image/jpeg"} if body else {})
    end = time.monotonic() + MOST_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(request) as answer:
                return json.loads(answer.read() or b"null")
        except OSError:
            time.sleep(ASK_EVERY_SECONDS)
    raise RuntimeError(f"{url}: no answer")


def top(answer: Any) -> int:
    """The index of the best class."""
    return int(answer["results"][0]["predictions"][0]["index"])


def starts(bundle: Path, photo: bytes, backends: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Medians of starts in turns."""
    found: dict[str, list[tuple[float, float, int, int]]] = {backend: [] for backend in backends}
    for _ in range(count + 1):
        for backend in backends:
            began = time.perf_counter()
            with server([f"x={bundle}", "--backend", backend], hidden=backend != "torch") as (process, url):
                index = top(asked(process, url + "/classify", photo))
                seconds, used = time.perf_counter() - began, usage(process.pid)
                found[backend].append((seconds, used.cpu_seconds, used.rss_bytes, index))
    rows = []
    for backend, runs in found.items():
        *columns, indices = zip(*runs[1:], strict=True)  # the first fills the page cache
        medians = map(statistics.median, columns)
        names = ("first_answer_seconds", "cpu_seconds", "rss_bytes")
        rows.append(
            {"section": "start", "backend": backend, **dict(zip(names, medians, strict=True)), "index": indices[0]}
        )
    return rows


def answers(bundle: Path, photos: Sequence[bytes], backend: str) -> dict[str, Any]:
    """How many photographs have the same best class without PyTorch and with it."""
    found = []
    for hidden in (True, False):
        with server([f"x={bundle}", "--backend", backend], hidden=hidden) as (process, url):
            asked(process, url + "/readyz")
            found.append([top(asked(process, url + "/classify", photo)) for photo in photos])
    same = sum(a == b for a, b in zip(*found, strict=True))
    return {"section": "answers", "backend": backend, "photos": len(photos), "same_top1": same}


def pixels(bundle: Path, photos: Sequence[bytes]) -> dict[str, Any]:
    """The largest difference of a pixel from the reference loader's, in levels."""
    spec = PreprocessSpec.from_dict(read_config(bundle).preprocess)
    loaders, worst, std = (CpuLoader(spec), PillowLoader(spec)), 0.0, np.array(spec.std)[:, None, None]
    for photo in photos:
        ours, reference = (np.asarray(each.load([photo]).pixels) for each in loaders)
        worst = max(worst, float((abs(ours - reference) * std * 255).max()))
    return {"section": "pixels", "photos": len(photos), "worst_levels": worst}


def many(bundle: Path, count: int, backend: str) -> dict[str, Any]:
    """Start and memory of one server of so many copies of a bundle."""
    with tempfile.TemporaryDirectory() as folder:
        for place in range(count):
            shutil.copytree(bundle, Path(folder) / f"m{place}")
        began = time.perf_counter()
        arguments = ["--repository", folder, "--backend", backend]
        with server(arguments, hidden=backend != "torch") as (process, url):
            asked(process, url + "/livez")
            listening = time.perf_counter() - began
            asked(process, url + "/readyz")
            ready, used = time.perf_counter() - began, usage(process.pid)
            served = len(asked(process, url + "/v1/models")["models"])
    return {
        "section": "many",
        "backend": backend,
        "models": served,
        "listening_seconds": listening,
        "ready_seconds": ready,
        "rss_bytes": used.rss_bytes,
    }


if __name__ == "__main__":
    main()
