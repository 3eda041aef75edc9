"""Our compressed models beside their rivals, in one run.

    python -m milkweed.bench.frontier MODEL --images PHOTOS --bundle OURS [OURS ...]

All rows are of the weights of MODEL, a dense bundle. Every second photograph fits, the others judge. Each row is timed
in turns with the dense model in OpenVINO and float32, in the lanes that a server has. It is in the JSON as soon as it
is measured: the same command goes on behind an interruption.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.output import note
from ...compress.data import Baseline
from ...compress.job import CompressJob
from ...jobs.train_split import digest
from ...models import read_config
from ...models.progress import Progress
from ..machine import about, save
from .measure import Bench, Row
from .rivals import RIVALS
from .show import draw, print_document

BATCHES = (1, 8)
TOOLS = ("openvino", "nncf", "onnxruntime", "torchao")
SAME = ("benchmark", "model", "bundles", "photographs", "machine", "versions", "batches")
"""Members that decide the rows: an unfinished run with others is begun anew."""


def measure(model: Path, images: Path, bundles: Sequence[Path], out: Path, *, exchange: bool = False) -> dict[str, Any]:
    """Measure all rows, or those that an unfinished run in `out` has not; every row is written when it is there.

    Args:
        exchange: the photographs that fit and those that judge change places.

    Raises:
        ValueError: OpenVINO is not installed, or a bundle or photographs that cannot be used.
    """
    before = os.getloadavg()
    baseline = Baseline(CompressJob(source=model, out=out, images=images, batches=BATCHES), Progress(note=note))
    if exchange:
        baseline.calibration, baseline.held_out = baseline.held_out, baseline.calibration
    fitted, judged = len(baseline.calibration), len(baseline.held_out)
    photographs = {"files": digest(images, baseline.samples), "fitted": fitted, "judged": judged}
    document = {
        **about("frontier", before, TOOLS),
        "finished": False,
        "model": {"arch": baseline.config.arch, "version": baseline.config.version},
        "bundles": [read_config(bundle).version for bundle in bundles],
        "photographs": {**photographs, "exchanged": exchange},
        "batches": list(BATCHES),
    }
    document["rows"] = rows = _rows_so_far(out, document)

    def keep(row: Row) -> None:
        save(out, document)
        note(f"{row['name']}, {row.get('computed_by', row['asked'])}: {row.get('missing') or row['times_dense']}")

    with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
        bench = Bench(baseline, BATCHES, Path(folder), rows, keep)
        document["plan"] = str(bench.plan)
        bench.run(RIVALS, bundles)
    document |= {**about("frontier", before, TOOLS), "finished": True}
    save(out, document)
    return document


def _rows_so_far(out: Path, document: Mapping[str, Any]) -> list[Row]:
    """The rows of a run of the same that was interrupted."""
    try:
        interrupted = json.loads(out.read_text())
    except (OSError, ValueError):
        return []
    known = json.loads(json.dumps(document))  # as it was written: lists for tuples
    same = not interrupted.get("finished") and all(interrupted.get(name) == known[name] for name in SAME)
    return list(interrupted["rows"]) if same else []


def main() -> None:
    """Measure, write, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="bundle of the dense model")
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs, named by class or not")
    parser.add_argument(
        "--bundle", type=Path, nargs="+", default=[], help="compressed models of ours; the first is drawn as chosen"
    )
    parser.add_argument("--exchange", action="store_true", help="the two halves of the photographs change places")
    parser.add_argument("--out", type=Path, default=Path("bench/results/frontier.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    try:
        document = measure(args.model, args.images, args.bundle, args.out, exchange=args.exchange)
        print_document(document)
        note(f"wrote {args.out} and {draw(document, args.out.with_suffix('.svg'))}")
    except (ImportError, ValueError) as error:
        sys.exit(f"frontier: {error}")


if __name__ == "__main__":
    main()
