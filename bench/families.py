"""What int8 gains in each family: OpenVINO's float32, bfloat16 and NNCF's int8, and our own kernels, in one table.

    python -m milkweed.bench.families PHOTOS MODEL [MODEL ...]

MODEL is the bundle of a dense model, or the name of an architecture: its weights are then random, and no answers are
judged. Every second photograph calibrates, the others judge. The forms of a model are timed in turns, in the lanes that
a server has. A model is in the JSON as soon as it is measured.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..compress.data import Baseline
from ..compress.job import CompressJob
from ..compress.quality import QualityEvaluator, log_probabilities
from ..compress.timing import time_in_turns
from ..inference.backend import Candidate
from ..inference.device import CPU
from ..inference.forward import Forward, LanePlan, plan_lanes
from ..inference.graph import Graph, graph_forward
from ..inference.program import program_forward
from ..models import save_bundle
from ..models.accounting import macs, parameter_count
from ..models.architectures.registry import family
from ..models.architectures.token_blocks import apply_token_plan
from ..models.errors import ExportError, first_line
from ..models.layers.token_plan import TokenPlan
from ..models.onnx.export import write_verified
from ..models.onnx.quantize import quantized_graph
from ..models.programs.stored import ours_refusal, stored_int8
from ..models.progress import SILENT
from .machine import about, save
from .server.bundles import random_bundle

BATCHES = (1, 8)
TOOLS = ("openvino", "nncf", "timm")
FORMS = ("float32", "bfloat16", "int8", "ours")

Row = dict[str, Any]


def measure(source: Path, photos: Path, folder: Path, *, trained: bool) -> Row:
    """Measure the forms of a bundle.

    Args:
        folder: for graphs.
        trained: judge the answers too.
    """
    baseline = Baseline(CompressJob(source=source, out=folder / "out", images=photos, batches=BATCHES), SILENT)
    operations = macs(baseline.model, baseline.size).total
    arch = baseline.config.arch
    row: Row = {"model": arch, "family": family(arch), "trained": trained, "px": baseline.size, "macs": operations}
    row |= {
        "parameters": parameter_count(baseline.model).total,
        "plan": str(plan := replace(plan_lanes(CPU, operations), most_threads=1)),
    }
    with ExitStack() as opened:
        forwards, row["bytes"], row["notes"] = {}, {}, {}
        for form in FORMS:
            try:
                forwards[form], row["bytes"][form] = made(form, baseline, plan, folder)
            except ExportError as error:
                row["notes"][form] = first_line(error)
                continue
            opened.callback(forwards[form].close)
        row["ms"] = {form: {str(b): t for b, t in ms.items()} for form, ms in time_in_turns(forwards, BATCHES).items()}
        row["quality"] = dict(judged(baseline, forwards)) if trained else {}
    return row


def made(form: str, baseline: Baseline, plan: LanePlan, folder: Path) -> tuple[Forward, int]:
    """The forward of a form, and the bytes of its graph, or of our bundle.

    Raises:
        ExportError: the model has no such form here.
    """
    if form == "ours":
        if (refusal := ours_refusal(baseline.model, baseline.size)) is not None:
            raise ExportError(refusal)
        tokens = TokenPlan(class_last=True)
        try:
            model = apply_token_plan(baseline.fresh_model(), tokens)
        except ValueError:  # its head reads other tokens than the class token
            tokens, model = TokenPlan(), baseline.fresh_model()
        program = stored_int8(model, baseline.size, baseline.calibration.pixels, folder / "ours")
        forward = program_forward(program.loaded, plan, baseline.size, program.activations)
        contents = program.contents(baseline.size) | {"config": replace(baseline.config, tokens=tokens)}
        return forward, save_bundle(folder / "ours as served", **contents).bytes_on_disk
    file = folder / f"{form}.onnx"
    if form == "int8":
        file.write_bytes(quantized_graph(folder / "float32.onnx", baseline.calibration.pixels).data)
    else:
        write_verified(baseline.fresh_model(), file, baseline.size, form)
    candidate = Candidate("openvino", "float32" if form == "int8" else form)
    return graph_forward(Graph(file, file.stat().st_size), candidate, plan, baseline.size), file.stat().st_size


def judged(baseline: Baseline, forwards: dict[str, Forward]) -> Iterator[tuple[str, Row]]:
    """What each form answers to the photographs that judge, beside the dense model in torch."""
    held_out = baseline.held_out
    for form, forward in forwards.items():
        answers, _ = log_probabilities(forward, held_out.batches)
        yield form, QualityEvaluator(baseline.dense, held_out.targets)(answers).to_dict()


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with a line for a model: ms an image at batch 1 and 8, for each form of it."""
    lines = ["| family | model | " + " | ".join(FORMS) + " |", "|---" * (2 + len(FORMS)) + "|"]
    for row in rows:
        ms = [row["ms"].get(form, {}) for form in FORMS]
        cells = [" / ".join(f"{times[str(b)]:.2f}" for b in BATCHES if times) for times in ms]
        lines.append(f"| {row['family']} | {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of photographs, named by class or not")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundle, or architecture with random weights")
    parser.add_argument("--out", type=Path, default=Path("bench/results/families.json"))
    options = parser.parse_args()
    rows, load = list[Row](), os.getloadavg()
    for model in options.models:
        with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
            trained = (source := Path(model)).is_dir()
            source = source if trained else random_bundle(Path(folder) / "bundle", model)
            rows.append(measure(source, options.photos, Path(folder), trained=trained))
        save(options.out, {**about("families", load, TOOLS), "batches": BATCHES, "rows": rows})
        print(table(rows[-1:]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
