"""Runs the fuzzers, each in a process of its own, and prints cases, seconds and findings.

    python tests/fuzz [--seconds 60] [--only headers,json] [--seed 1] [--url http://127.0.0.1:8000] [--out FOLDER]

The seconds are shared out among the targets. A finding names its seed: `--only TARGET --seed N --seconds 0` is that
case alone. Its input, where it has one, is written to `--out`. The exit code is 1 where anything was found.

Every module beside this one may have `TARGETS: dict[str, Callable[[random.Random], None]]`.
"""

import argparse
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from ctypes import c_int64
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = __package__ or "tests.fuzz"
if (
    not __package__
):  # run by its path: found behind what is installed, which the repository's folders would hide otherwise
    sys.path = [*(path for path in sys.path if path != str(HERE)), str(HERE.parents[1])]

Target = Callable[[random.Random], None]

CASE_SECONDS = 60.0
MOST_FINDINGS = 5


def targets(url: str | None) -> dict[str, Target]:
    """Every target by its name; with a URL, HTTP too."""
    found = {}
    for path in sorted({*HERE.glob("[a-z]*.py")} - {*HERE.glob("test_*.py")}):
        found.update(getattr(import_module(f"{PACKAGE}.{path.stem}"), "TARGETS", {}))
    return found | ({"http": import_module(f"{PACKAGE}.http_fuzz").against(url)} if url else {})


def run(target: Target, seed: int, seconds: float, at: Any, told: Connection) -> None:
    """Run cases for so many seconds, at least one; tell of each finding at a new place, then 0."""
    end, first, places = time.monotonic() + seconds, seed, set[str]()
    while seed == first or (time.monotonic() < end and len(places) < MOST_FINDINGS):
        at.value = seed
        try:
            target(random.Random(seed))
        except Exception as error:
            place = "".join(traceback.format_exception(error.__cause__ or error)[-2:])
            if place not in places:
                places.add(place)
                told.send((seed, f"{error}\n{place}", getattr(error, "data", b"")))
        seed += 1
    told.send(0)


def told_of(process: BaseProcess, at: Any, here: Connection) -> Iterator[tuple[int, str, bytes]]:
    """Yield each finding of a process until it is over; one that died, or hangs and is killed, is the last finding."""
    last = at.value
    try:
        while True:
            if here.poll(CASE_SECONDS):
                if isinstance(told := here.recv(), int):
                    return
                yield told
            elif at.value == last:
                process.kill()
                yield last, f"a case takes more than {CASE_SECONDS:g} s", b""
                return
            last = at.value
    except EOFError:
        process.join()
        code = process.exitcode or 0
        yield at.value, f"its process died: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}", b""


def fuzz(name: str, target: Target, seed: int, seconds: float, out: Path) -> int:
    """Run a target in a process, print what came of it, and return how many findings there were."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    at, began, findings = context.Value(c_int64, seed), time.monotonic(), 0
    process = context.Process(target=run, args=(target, seed, seconds, at, there))
    process.start()
    there.close()
    for case, what, data in told_of(process, at, here):
        findings += 1
        print(f"{name}: seed {case}: {what}", flush=True)
        if data:
            path = out / f"{name}-{case}"
            path.write_bytes(data)
            print(f"{name}: its input is {path}", flush=True)
    process.join()
    cases = at.value - seed + 1
    print(f"{name:10} {cases:8} cases {time.monotonic() - began:7.1f} s {findings} findings", flush=True)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    parser.add_argument("--only", help="targets, separated by commas")
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the next one's is 1 higher")
    parser.add_argument("--url", help="a server that may be sent mangled HTTP")
    parser.add_argument("--out", type=Path, help="a folder for the inputs of findings")
    options = parser.parse_args()
    known = targets(options.url)
    chosen = options.only.split(",") if options.only else [*known]
    if unknown := set(chosen) - set(known):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {', '.join(known)}")
    out = options.out or Path(tempfile.gettempdir())
    out.mkdir(parents=True, exist_ok=True)
    share = options.seconds / len(chosen)
    return 1 if sum(fuzz(name, known[name], options.seed, share, out) for name in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
