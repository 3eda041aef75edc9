"""Attacks a live server, and prints what each attack costs it and whether good requests notice.

    python -m milkweed.bench.attacks                          # each attack alone, on a fresh server
    python -m milkweed.bench.attacks --only wide,parts
    python -m milkweed.bench.attacks --files DIR --files DIR  # every file of these folders, between good photographs
    python -m milkweed.bench.attacks --soak 10                # minutes of good requests beside all attacks

Attackers are processes of their own at the lowest priority, as if they were on another machine. The seconds are those
that the server took to answer. The memory is what the server and its children have more than before the attack. `livez`
is the longest time that a probe took during the attack.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ..server.bundles import tiny_bundle
from .hostile import ATTACKS, CLASSES, Target
from .measure import measure_each, measure_files, soak

RESULTS = Path(__file__).parent.parent / "results"


def attack(names: list[str], target: Target, seconds: float) -> dict[str, Any]:
    """Run the attacks in turn, each at least once, until the seconds are over.

    Returns:
        The outcomes of each, the rounds, and the seconds that the server took: bodies are made before they begin, and
        pauses are not counted.
    """
    os.nice(19)
    bodies = {name: ATTACKS[name].body() for name in names}
    pause_seconds = sum(ATTACKS[name].pause_seconds for name in names)
    began, rounds = time.monotonic(), 0
    found: dict[str, Counter[str]] = {}
    while not rounds or time.monotonic() < began + seconds:
        for name in names:
            found.setdefault(name, Counter()).update(ATTACKS[name].run(target, bodies[name]))
        rounds += 1
    elapsed = time.monotonic() - began
    return {"seconds": elapsed - rounds * pause_seconds, "rounds": rounds, "outcomes": found}


def main() -> None:
    """Run the command that the module describes."""
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
        bundle = tiny_bundle(Path(folder) / "wide", CLASSES)
        if options.files:
            document["files"] = found = measure_files(options.files, bundle)
            print(json.dumps(found, indent=1))
        elif options.soak:
            document["soak"] = found = soak(options.soak, bundle, names)
            print(json.dumps(found, indent=1))
        else:
            document["each"] = measure_each(names, bundle)
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
