"""`milkweed inspect` describes a bundle: what it is, what it costs, where it came from, and its measured accuracy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bundle_args import bundle_path, demo_bundle
from ..errors import CommandError, one_line
from ..options import Json, Plot, check_plot
from ..output import flattened, megabytes, note, print_fields, print_json, print_table, storage_line
from .recorded_recipe import print_recipe
from .report import print_report, print_search

if TYPE_CHECKING:
    from torch import nn

    from ...models.bundle.config import BundleConfig
    from ...models.report import Frontier, RunReport

COMMON = ("kind", "in_features", "out_features", "bias")
"""The members that the structure of every layer has."""

UNUSED: tuple[object, ...] = (None, "", {}, False)
"""Values of arguments that say that an option was not used."""

SCORES = {
    "single_label_classification": "scores are their softmax",
    "multi_label_classification": "several an image: each score is a sigmoid",
}
LINE = 120
"""Characters of a command's line, which begins with what matters."""

BundleToInspect = Annotated[
    Path | None,
    typer.Argument(metavar="BUNDLE", help="Folder of the bundle; the demo model if not given.", parser=bundle_path),
]

OnlyRecipe = Annotated[
    bool, typer.Option("--recipe", help="Print nothing but the file with which `compress --recipe` makes it again.")
]


def inspect(bundle: BundleToInspect = None, recipe: OnlyRecipe = False, plot: Plot = None, json: Json = False) -> None:
    """Describe a bundle: what it is and costs, and its accuracy on record.

    The whole bundle is verified: hashes, keys and shapes. What its compression or training found and cost is
    shown from the report.json beside it, where it has one, and of a search its Pareto frontier, which --plot
    draws.

    \b
    Example:
      milkweed inspect ./deit-monarch
      milkweed inspect ./deit-fast --recipe > fast.json
    """
    check_plot(plot)
    bundle = bundle or demo_bundle()
    if recipe:
        print_recipe(bundle, plot)
        return
    document = _describe(bundle)
    report, frontier = _read_report(bundle, document["version"]), _read_frontier(bundle, document["metrics"])
    if plot is not None:
        _plot(bundle, frontier, plot)
    if json:
        print_json({**document, "report": None if report is None else report.to_dict()})
        return
    _print(document, layers=report is None or not report.layers)
    _print_history(document)
    if frontier is not None:
        print("\nsearch")
        print_search(frontier)
    if report is not None:
        print_report(report)


def _plot(bundle: Path, frontier: "Frontier | None", plot: Path) -> None:
    from ...models.report import plot_frontier

    if frontier is None:
        raise CommandError(f"--plot {plot}: bundle {bundle} has no record of a search to draw")
    note(f"wrote {plot_frontier(frontier, plot)}")


def _read_frontier(bundle: Path, metrics: Mapping[str, Any]) -> "Frontier | None":
    """Read what a search measured; a record that cannot be used is named on stderr and ignored."""
    from ...models.report import Frontier

    try:
        return Frontier.of_bundle(metrics)
    except ValueError as error:
        note(f"bundle {bundle}: metrics.{one_line(str(error))}: passed over")
        return None


def _read_report(bundle: Path, version: str) -> "RunReport | None":
    """Read the bundle's report; one that cannot be used is named on stderr and ignored."""
    from ...models.errors import quoted
    from ...models.report import read_report

    try:
        report = read_report(bundle)
        if report is not None and report.version != version:
            raise ValueError(f"report.json is about version {quoted(report.version)}, the bundle is {version}")
    except (ValueError, OSError) as error:
        note(f"bundle {bundle}: {one_line(str(error))}: passed over")
        return None
    return report


def _describe(bundle: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from ...models import empty_model, layer_accounts, macs, parameter_count
    from ...models.accounting import COUNTER, dense_equivalent_bytes, dense_equivalent_parameters
    from ...models.bundle.bundle import verified_model

    model, config = verified_model(bundle)
    # A loaded model is frozen; only a model without weights knows which parameters training would change.
    count = parameter_count(empty_model(config))
    size = int(config.preprocess["size"])
    costs = macs(model, size)
    document: dict[str, Any] = {
        "bundle": str(bundle),
        **_described_model(config),
        "layers": [asdict(layer) for layer in layer_accounts(model, size)],
        "parameters": {**asdict(count), "total": count.total, "dense_equivalent": dense_equivalent_parameters(model)},
        "macs": {"per_image": costs.total, "dense_equivalent": costs.dense_equivalent, "counter": COUNTER},
        "bytes": {"dense_equivalent": dense_equivalent_bytes(model), "on_disk": config.bytes_on_disk},
        "metrics": dict(config.metrics),
        "provenance": dict(config.provenance),
        "files": dict(config.files),
    }
    # This comes last, since it turns the model into its serving form.
    document["bytes"]["resident"] = _resident_bytes(bundle, model, config)
    return document


def _described_model(config: "BundleConfig") -> dict[str, Any]:
    return {
        "version": config.version,
        "arch": config.arch,
        "arch_args": dict(config.arch_args),
        "num_classes": config.num_classes,
        "problem_type": config.problem_type,
        "output_meaning": config.output_meaning,
        "preprocess": dict(config.preprocess),
        "confidence": config.confidence and config.confidence.to_dict(),
        "structure": {name: layer.to_dict() for name, layer in config.structure.items()},
        "widths": dict(config.widths),
        "tokens": config.tokens.to_dict(),
        "storage": dict(config.storage),
        "graph": None if config.graph is None else config.graph.to_dict(),
        "program": None if config.program is None else config.program.to_dict(),
    }


def _outputs(document: Mapping[str, Any]) -> dict[str, str]:
    """What a model's outputs are, in words."""
    if scores := SCORES.get(document["problem_type"]):
        return {"classes": f"{document['num_classes']}, {scores}"}
    return {"embedding": f"{document['num_classes']} values, {document['output_meaning']}; no classes"}


def _resident_bytes(bundle: Path, model: "nn.Module", config: "BundleConfig") -> int:
    """Return what the weights take in memory: torch's in float32, or those of a graph alone."""
    from ...inference.graph import own_graph
    from ...models.accounting import resident_bytes
    from ...models.bundle.graph import load_graph
    from ...models.serving.prepare import prepare_for_inference

    if config.graph_only:
        return own_graph(load_graph(bundle)[0]).weight_bytes
    return resident_bytes(prepare_for_inference(model, int8_layers=config.int8_layers))


def _print(document: Mapping[str, Any], layers: bool) -> None:
    """Print what the model is and costs, and the structured layers only if the report does not show them."""
    from ...models.architectures.widths import widths_summary
    from ...models.confidence import ConfidenceThreshold
    from ...models.layers.token_plan import TokenPlan

    structured = [layer for layer in document["layers"] if layer["kind"] != "dense"]
    parameters, macs, size = document["parameters"], document["macs"], document["bytes"]
    print_fields(
        {
            "bundle": f"{document['bundle']} (version {document['version']}, verified)",
            "arch": document["arch"],
            **_outputs(document),
            "image": _image(document["preprocess"]),
            **({"sure": ConfidenceThreshold.from_dict(document["confidence"])} if document["confidence"] else {}),
            "linear layers": f"{len(document['layers'])}, {_kinds(structured)}",
            **({"narrower": widths_summary(document["widths"])} if document["widths"] else {}),
            **({"tokens": TokenPlan.from_dict(document["tokens"]).summary} if document["tokens"] else {}),
            "parameters": f"{parameters['total']:,} ({parameters['trainable']:,} trainable), "
            f"dense {_share(parameters['total'], parameters['dense_equivalent'])}",
            "MACs": f"{macs['per_image']:,} an image, dense {_share(macs['per_image'], macs['dense_equivalent'])}",
            "counted": macs["counter"],
            "bytes": f"dense {megabytes(size['dense_equivalent'])}, "
            f"resident {megabytes(size['resident'])} ({_resident(document)}), "
            f"on disk {megabytes(size['on_disk'])}",
            **_forms(document),
        }
    )
    if structured and layers:
        print()
        _print_layers(structured, document["structure"])


def _print_history(document: Mapping[str, Any]) -> None:
    """Print the metrics and the provenance, without a search's record, which is printed apart."""
    for title in ("metrics", "provenance"):
        shown = {name: value for name, value in document[title].items() if name != "commands"}
        values = {name: value for name, value in flattened(shown).items() if value not in (None, "", {})}
        flat = {f"  {name}": value for name, value in values.items() if not _of_search(name)}
        if title == "provenance":
            flat |= _commands(document[title].get("commands", ()))
        if flat or not document[title]:
            print(f"\n{title}")
            print_fields(flat or {"  none on record": ""})


def _image(preprocess: Mapping[str, Any]) -> str:
    size, scaling = f"{preprocess['size']} px", preprocess.get("jpeg_scaling", "exact")
    return f"{size}, {preprocess['interpolation']}, crop {preprocess['crop_pct']}, JPEG scaling {scaling}"


def _commands(steps: object) -> dict[str, object]:
    """A line for each command that made the bundle, as far as the record can be read; --json has all of it."""
    from ...models.report.terms import duration

    lines: dict[str, object] = {}
    for number, step in enumerate(steps if isinstance(steps, list | tuple) else (), 1):
        try:
            version, took = step["versions"]["milkweed"], duration(float(step["seconds"]))
            arguments = {name: value for name, value in flattened(step["arguments"]).items() if value not in UNUSED}
            said = ", ".join(f"{name} {value}" for name, value in arguments.items())
            lines[f"  {number}  {step['command']}"] = f"{took}, milkweed {version}: {said}"[:LINE]
        except (AttributeError, KeyError, TypeError, ValueError):
            lines[f"  {number}"] = str(step)[:LINE]
    return lines


def _of_search(name: str) -> bool:
    """Whether a flattened name belongs to a search's record."""
    from ...models.report.frontier import SEARCH

    return name.startswith(f"{SEARCH}.")


def _share(actual: int, dense: int) -> str:
    """Write the dense model's count and this model's share of it: `4,886,888: 76.5 %`."""
    return f"{dense:,}: {100 * actual / dense:.1f} %"


def _forms(document: Mapping[str, Any]) -> dict[str, str]:
    """Say in which forms the bundle holds its model: weights, a graph, or both."""
    weights, graph, program = f"{storage_line(document['storage'])} on disk", document["graph"], document["program"]
    if program is not None:
        return {"weights": weights, "made for": f"milkweed's CPU kernels, in {program['precision']}"}
    if graph is None:
        return {"weights": weights}
    runtimes = " and ".join(graph["backends"])
    return {"weights": "none" if _graph_only(document) else weights, "graph": f"{graph['precision']}, for {runtimes}"}


def _graph_only(document: Mapping[str, Any]) -> bool:
    return "model.safetensors" not in document["files"]


def _resident(document: Mapping[str, Any]) -> str:
    if _graph_only(document):
        return f"{document['graph']['precision']} graph"
    return "int8 and float32" if "int8" in document["storage"].values() else "float32"


def _kinds(structured: Sequence[Mapping[str, Any]]) -> str:
    """Say how many layers are of which kind: `4 of them Monarch`."""
    from ...models.layers.shapes import KINDS

    counts = Counter(layer["kind"] for layer in structured)
    said = (f"{count} of them {KINDS[kind].name}" for kind, count in counts.items())
    return ", ".join(said) or "all of them dense"


def _print_layers(layers: list[dict[str, Any]], structure: Mapping[str, Any]) -> None:
    rows = []
    for layer in layers:
        shown = (layer["name"], layer["kind"], _options(structure[layer["name"]]))
        counts = (f"{layer[name]:,}" for name in ("parameters", "dense_parameters", "macs"))
        rows.append((*shown, layer["in_features"], layer["out_features"], *counts))
    print_table(("layer", "kind", "options", " inputs", " outputs", " parameters", " dense", " MACs"), rows)


def _options(structure: Mapping[str, Any]) -> str:
    """Write the options of a layer's kind, without its widths: `nblocks 4, rank 8`."""
    others = {name: value for name, value in structure.items() if name not in COMMON}
    return ", ".join(f"{name} {value}" for name, value in others.items() if value is not None)
