"""Attacks on a live server: what each costs it, and whether good requests beside all of them notice.

    python -m milkweed.bench.attacks                          # each attack by itself, on a fresh server
    python -m milkweed.bench.attacks --only wide,parts
    python -m milkweed.bench.attacks --files DIR --files DIR  # every file of these folders, with good neighbours
    python -m milkweed.bench.attacks --soak 10                # minutes of good requests at half capacity beside all

Attackers are processes of their own at the lowest priority, as if they were elsewhere. Memory is the server's with its
children, beside what it had before; `livez` is the longest that a probe took meanwhile.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .hostile import ATTACKS, Target
from .measure import measure_each, measure_files, soak, wide_bundle

RESULTS = Path(__file__).parent.parent / "results"


def attack(names: list[str], target: Target, seconds: float) -> dict[str, Any]:
    """Attack in turns, at least once each; the outcomes."""
    os.nice(19)
    began, rounds = time.monotonic(), 0
    found: dict[str, Counter[str]] = {}
    while not rounds or time.monotonic() < began + seconds:
        for name in names:
            found.setdefault(name, Counter()).update(ATTACKS[name].run(target))
        rounds += 1
    return {"seconds": time.monotonic() - began, "rounds": rounds, "outcomes": found}


def main() -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks, separated by commas")
    parser.add_argument("--files", action="append", type=Path, help="a folder of images and what pretends to be one")
    parser.add_argument("--soak", type=float, help="minutes")
    parser.add_argument("--out", type=Path, default=RESULTS / "attacks.json")
    parser.add_argument("--against", help=argparse.SUPPRESS)
    parser.add_argument("--for-seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",")
    if options.against:
        print(json.dumps(attack(names, Target(**json.loads(options.against)), options.for_seconds)))
        return
    document = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        bundle = wide_bundle(Path(folder) / "wide")
        if options.files:
            document["files"] = measure_files(options.files, bundle)
        elif options.soak:
            document["soak"] = soak(options.soak, bundle, names)
        else:
            document["each"] = measure_each(names, bundle)
    if "each" not in document or options.files or options.soak:
        print(json.dumps(document["files" if options.files else "soak"], indent=1))
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
