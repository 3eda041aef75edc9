"""Records timm's classifiers that milkweed serves: `python -m milkweed.bench.timm_models`, a quarter of an hour.

Every name of timm is built without weights. It is left out if it takes no square pictures, gives no logits, has no
linear layer outside its classifier, or tensors that a bundle cannot hold. Of the others all those layers are replaced
by Monarch ones, and the model is run: each must be used as a layer. Writes `models/architectures/timm_models.json`,
a part of the package.
"""

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from ..models.accounting import macs
from ..models.architectures.meta_init import built_on_meta, on_meta
from ..models.architectures.summary import linears_outside
from ..models.architectures.timm_models import TimmModel, create_timm_model, timm_classifier
from ..models.layers.layer_spec import LayerSpec
from ..models.layers.select import replace_linears

DEFAULT_OUT = Path("models/architectures/timm_models.json")
CLASSES = 1000


def examine(name: str) -> TimmModel | str:
    """What there is to know of a name of timm, or why it is left out."""
    config = timm.models.get_pretrained_cfg(name)
    if config is None or config.input_size[0] != 3 or config.input_size[1] != config.input_size[2]:
        return "take no square pictures"
    if not config.classifier:
        return "give no logits"
    with on_meta():
        model = create_timm_model(name, CLASSES, {})
    linears = linears_outside(model, timm_classifier(name))
    if not linears:
        return "have no linear layer outside the classifier"
    if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
        return "have weights under several names"
    if _without_values(built_on_meta(lambda: create_timm_model(name, CLASSES, {}))):
        return "have a tensor that is neither stored nor computed"
    counts = sum(p.numel() for p in model.parameters()), sum(linear.weight.numel() for linear in linears.values())
    with on_meta():
        replace_linears(model, {layer: _monarch(linear) for layer, linear in linears.items()})
    shapes: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda module, args, output: shapes.append(_shape(output)))
    size = int(config.input_size[-1])
    try:
        counted = macs(model, size)
    except AttributeError:  # a structured layer has no `weight`
        return "read the weights of a linear layer themselves"
    if shapes != [(1, CLASSES)]:
        return "give no logits"
    if not all(counted.by_layer.get(layer) for layer in linears):
        return "read the weights of a linear layer themselves"
    family = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
    crop_mode = "pad" if config.crop_pct > 1 else config.crop_mode
    return TimmModel(family, size, counts[0], counted.dense_equivalent, len(linears), counts[1], crop_mode)


def examined(names: Sequence[str]) -> Iterator[tuple[str, TimmModel | str]]:
    """Names with what became of them."""
    for name in names:
        try:
            yield name, examine(name)
        except Exception as error:
            # Hundreds of classes that nobody here wrote: whatever one cannot do is a reason to leave it out.
            yield name, f"fail: {type(error).__name__}: {' '.join(str(error).split())[:100]}"


def record(found: Mapping[str, TimmModel | str]) -> dict[str, Any]:
    """The document: models in the order of their names, and how many names were left out for which reason."""
    left_out = Counter(result for _, result in sorted(found.items()) if isinstance(result, str))
    models = {name: row_of(result) for name, result in sorted(found.items()) if isinstance(result, TimmModel)}
    return {"timm": timm.__version__, "models": models, "left_out": dict(left_out.most_common())}


def row_of(model: TimmModel) -> dict[str, Any]:
    """The JSON of a model, in which the usual crop is not said."""
    row = asdict(model)
    return {key: value for key, value in row.items() if (key, value) != ("crop_mode", "center")}


def text_of(document: Mapping[str, Any]) -> str:
    """The file's text: JSON, a model a line."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in document["models"].items())
    head, left_out = json.dumps(document["timm"]), json.dumps(document["left_out"], indent=1).replace("\n", "\n ")
    return f'{{\n "timm": {head},\n "models": {{\n{rows}\n }},\n "left_out": {left_out}\n}}\n'


def _monarch(linear: nn.Linear) -> LayerSpec:
    widths = linear.in_features, linear.out_features
    return LayerSpec("monarch", *widths, nblocks=min(4, *widths), bias=linear.bias is not None)


def _without_values(model: nn.Module) -> bool:
    stored = model.state_dict().keys()
    return any(buffer.is_meta and name not in stored for name, buffer in model.named_buffers())


def _shape(output: Any) -> tuple[int, ...]:
    return tuple(output.shape) if isinstance(output, Tensor) else ()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.timm_models", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"default: {DEFAULT_OUT}")
    parser.add_argument("--only", default="", help="names like this, as timm.list_models takes it; default: all")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of timm's, about names and of what it finds on the meta device
    names = timm.list_models(options.only)
    found = {}
    for done, (name, result) in enumerate(examined(names), 1):
        found[name] = result
        print(f"{done}/{len(names)} {name}: {result}", file=sys.stderr, flush=True)
    options.out.write_text(text_of(record(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
