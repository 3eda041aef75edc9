"""`milkweed inspect`: what a bundle is, what it costs, where it came from, how accurate it was measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .bundles import demo_bundle
from .options import Json
from .output import flattened, megabytes, print_fields, print_json, print_table

MAC_COUNTER = "torch.utils.flop_counter formulas halved: convolutions, linear layers, attention; Monarch as its weights"

MaybeBundle = Annotated[
    Path | None, typer.Argument(metavar="BUNDLE", help="Folder of the bundle; the demo model if not given.")
]


def inspect(bundle: MaybeBundle = None, json: Json = False) -> None:
    """Tell what a bundle is and costs, and its accuracy on record.

    The whole bundle is verified: hashes, keys and shapes.

    \b
    Example:
      milkweed inspect ./deit-monarch
    """
    document = _describe(bundle or demo_bundle())
    if json:
        print_json(document)
        return
    _print(document)


def _describe(bundle: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from ...models import create_model, layer_accounts, load_bundle, macs, parameter_count
    from ...models.accounting import dense_equivalent_bytes, dense_equivalent_parameters, resident_bytes
    from ...models.inference import prepare_for_inference

    model, config = load_bundle(bundle)
    # A loaded model is frozen; which parameters training would touch, a fresh one knows.
    count = parameter_count(create_model(config.arch, structure=config.structure, **config.arch_args))
    size = int(config.preprocess["size"])
    costs = macs(model, size)
    document: dict[str, Any] = {
        "bundle": str(bundle),
        "version": config.version,
        "arch": config.arch,
        "arch_args": dict(config.arch_args),
        "num_classes": config.num_classes,
        "preprocess": dict(config.preprocess),
        "structure": {name: layer.to_dict() for name, layer in config.structure.items()},
        "layers": [asdict(layer) for layer in layer_accounts(model, size)],
        "parameters": {
            "trainable": count.trainable,
            "frozen": count.frozen,
            "total": count.total,
            "dense_equivalent": dense_equivalent_parameters(model),
        },
        "macs": {"per_image": costs.total, "counter": MAC_COUNTER},
        "bytes": {"dense_equivalent": dense_equivalent_bytes(model), "on_disk": config.bytes_on_disk},
        "metrics": dict(config.metrics),
        "provenance": dict(config.provenance),
        "files": dict(config.files),
    }
    # Last, since it turns the model into its serving form.
    document["bytes"]["resident"] = resident_bytes(prepare_for_inference(model))
    return document


def _print(document: Mapping[str, Any]) -> None:
    structured = [layer for layer in document["layers"] if layer["kind"] != "dense"]
    parameters, size = document["parameters"], document["bytes"]
    dense = parameters["dense_equivalent"]
    preprocess = document["preprocess"]
    print_fields(
        {
            "bundle": f"{document['bundle']} (version {document['version']}, verified)",
            "arch": document["arch"],
            "classes": document["num_classes"],
            "image": f"{preprocess['size']} px, {preprocess['interpolation']}, crop {preprocess['crop_pct']}",
            "linear layers": f"{len(document['layers'])}, {len(structured)} of them Monarch",
            "parameters": f"{parameters['total']:,} ({parameters['trainable']:,} trainable), "
            f"dense {dense:,}: {100 * parameters['total'] / dense:.1f} %",
            "MACs": f"{document['macs']['per_image']:,} an image ({document['macs']['counter']})",
            "bytes": f"dense {megabytes(size['dense_equivalent'])}, "
            f"resident {megabytes(size['resident'])} (float32), on disk {megabytes(size['on_disk'])}",
        }
    )
    if structured:
        print()
        _print_layers(structured, document["structure"])
    for title in ("metrics", "provenance"):
        print(f"\n{title}")
        flat = {f"  {name}": value for name, value in flattened(document[title]).items()}
        print_fields(flat or {"  none on record": ""})


def _print_layers(layers: list[dict[str, Any]], structure: Mapping[str, Any]) -> None:
    print_table(
        ("layer", "kind", " inputs", " outputs", " nblocks", " rank", " parameters", " dense", " MACs"),
        (
            (
                layer["name"],
                layer["kind"],
                layer["in_features"],
                layer["out_features"],
                structure[layer["name"]]["nblocks"],
                structure[layer["name"]]["rank"] or "-",
                f"{layer['parameters']:,}",
                f"{layer['dense_parameters']:,}",
                f"{layer['macs']:,}",
            )
            for layer in layers
        ),
    )
